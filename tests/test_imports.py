"""Every module can be imported, whatever else is installed."""

import importlib
from pathlib import Path

import pytest

from experiments.errors import UserError
from tests.calls import own_flags

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


def names(storey):
    for path in sorted((ROOT / storey).rglob("*.py")):
        # Entries at the bar are no modules of the project.
        if "entries" in path.parts:
            continue
        # The source of a notebook does its work as it is read.
        if not path.with_suffix(".ipynb").exists():
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("storey", ["attn", "experiments", "launch"])
def test_every_module_can_be_imported(storey):
    found = list(names(storey))
    assert len(found) > 50
    missing = set()
    for name in found:
        with own_flags():
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                missing.add(error.name)
            except UserError as error:
                missing.add(str(error).split(" needs the command ")[0])
    # What extras and users install.
    assert missing <= {"torch", "ctranslate2", "COMET"}
