"""`pytest --first-cases`, by which .ci/run tries a further version of JAX."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems

pytestmark = pytest.mark.quick


def test_the_first_case_of_each_test_is_kept():
    def item(file, test, case):
        path = Path(file)
        return SimpleNamespace(path=path, originalname=test, name=f"{test}[{case}]")

    class Config:
        hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))

        def getoption(self, name):
            return name == "--first-cases" and self.chosen

    cases = [("test_a.py", "test_x"), ("test_b.py", "test_x"), ("test_b.py", "test_y")]
    items = [item(*test, case) for test in cases for case in (1, 2, 3)]
    left_out = []
    config = Config()
    config.chosen = False
    kept = [*items]
    pytest_collection_modifyitems(config, kept)
    assert kept == items and not left_out
    config.chosen = True
    pytest_collection_modifyitems(config, kept)
    assert kept == items[::3]
    assert left_out == [one for one in items if one not in kept]
