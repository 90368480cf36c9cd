"""What the READMEs name is there: files, folders, commands, configs, sweeps and settings."""

import re
from pathlib import Path

import pytest

from experiments.settings import check_key
from experiments.sweep.points import load_config, sweeps_of

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
READMES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.rglob("[a-z]*/README.md")]
    if ".venv" not in str(path)
)


def commands(text):
    return re.findall(r"python -m (launch[\w.]*|tests[\w.]*)((?: [^\n`|#]+)?)", text)


def flag(arguments, name):
    match = re.search(rf"--{name}=(\S+)", arguments)
    return match[1] if match else None


@pytest.mark.parametrize("path", READMES, ids=str)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", READMES, ids=str)
def test_commands_exist(path):
    for module, _ in commands(path.read_text()):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists()


@pytest.mark.parametrize("path", READMES, ids=str)
def test_configs_and_their_sweeps_exist(path):
    for _, arguments in commands(path.read_text()):
        config = flag(arguments, "config")
        if config is None or not config.startswith("experiments/"):
            continue
        known = sweeps_of(load_config(str(ROOT / config)))
        names = flag(arguments, "sweep")
        assert set(names.split(",") if names else []) <= set(known)


@pytest.mark.parametrize("path", READMES, ids=str)
def test_settings_exist(path):
    for key in re.findall(r"--config\.([a-z]\w*\.\w+)=", path.read_text()):
        check_key(key)


def test_the_tree_lists_what_is_there():
    _, _, text = (ROOT / "README.md").read_text().partition("## Where things are")
    folder = ""
    listed = re.findall(r"(?m)^    (  )?(\w+[\w.]*/?) {2,}\S", text)
    assert len(listed) > 15
    for inner, name in listed:
        folder = folder if inner else name
        assert (ROOT / (folder + name if inner else name)).exists(), name
