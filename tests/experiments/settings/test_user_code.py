"""Code from outside: a user's own score, positions and corpus, in a file anywhere."""

import json

import ml_collections
import pytest

from experiments import settings
from experiments.data import dataset
from experiments.settings import OutsideError, SettingsError, resolve
from experiments.sweep.plan import plan_trials
from experiments.sweep.points import expand, load_config, sweeps_of
from tests.experiments import tiny

pytestmark = pytest.mark.quick

COSINE = '''
from typing import Any

import attn
import jax.numpy as jnp


@attn.score
class Cosine:
    """score(q, k) = temperature · cos(q, k)"""

    temperature: Any

    @classmethod
    def init(cls, key, h, d_q, d_k, *, start: float = 4.0):
        return cls(jnp.full(h, start))

    def __call__(self, q, k):
        def unit(x):
            return x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)

        return self.temperature * (unit(q) @ unit(k).T)
'''

KERPLE = '''
import dataclasses
from typing import Any, ClassVar

import attn
import jax.numpy as jnp


@attn.bias
class LogBias:
    """−r_1 · log(1 + r_2·|i − j|) (Chi et al. 2022)"""

    r_1: Any
    r_2: Any

    def tile(self, rows, columns):
        distance = jnp.abs(rows[:, None] - columns[None])
        return -self.r_1 * jnp.log1p(self.r_2 * distance)


@dataclasses.dataclass(frozen=True)
class Kerple(attn.Positions):
    slope: float = 1.0

    def bias(self, key, h, causal):
        return LogBias(jnp.full(h, self.slope), jnp.ones(h))
'''

SOURCE = '''
from experiments.data.corpora import Pairs


class Counting:
    """Numbers and their doubles."""

    def __init__(self, data, *, count: int = 200):
        self.count = count

    def fingerprint(self):
        return f"counting {self.count}"

    def read(self, split):
        start = {"train": 0, "validation": 10**6, "test": 2 * 10**6}[split]
        numbers = range(start, start + self.count)
        words = [f"{n} apples are on the table" for n in numbers]
        yield Pairs(words, [f"auf dem Tisch sind {n} Äpfel" for n in numbers])

    def place(self, split, i):
        return f"number {i}"

    def counts(self):
        return {}
'''


@pytest.fixture
def cosine(tmp_path):
    path = tmp_path / "my scores.py"
    path.write_text(COSINE)
    return path


def test_the_settings_name_the_file_and_its_source(cosine):
    resolved = tiny.resolve(model__score=f"{cosine}:Cosine(start=3)")
    (outside,) = resolved.outside()
    assert outside.source.decode() == COSINE
    assert (
        resolved.to_dict()["model"]["score"]
        == f"{cosine}:Cosine@{outside.sha256[:8]}(start=3)"
    )
    assert resolve(json.loads(json.dumps(resolved.to_dict()))) == resolved


def test_another_source_is_another_setting(cosine):
    before = tiny.resolve(model__score=f"{cosine}:Cosine")
    cosine.write_text(COSINE.replace("4.0", "5.0"))
    after = tiny.resolve(model__score=f"{cosine}:Cosine")
    assert before.digest() != after.digest()
    with pytest.raises(OutsideError, match="its source has changed and is now"):
        resolve(before.to_dict())


def test_a_path_from_here_is_the_same_file(cosine, monkeypatch):
    whole = tiny.resolve(model__score=f"{cosine}:Cosine")
    monkeypatch.chdir(cosine.parent)
    assert tiny.resolve(model__score=f"{cosine.name}:Cosine") == whole


def test_a_module_that_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "my_scores_as_module.py").write_text(COSINE)
    monkeypatch.syspath_prepend(tmp_path)
    resolved = tiny.resolve(model__score="my_scores_as_module:Cosine")
    assert resolved.to_dict()["model"]["score"].startswith(
        "my_scores_as_module:Cosine@"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}/none.py:X", r"none.py: cannot be read \(No such file or directory\)"),
        ("{}/bad.py:X", r"bad.py:2: ZeroDivisionError: division by zero"),
        ("{}/syntax.py:X", r"syntax.py:1: SyntaxError"),
        ("{}/good.py:X", r"no class or function X there \(it has Good\)"),
        (
            "{}/good.py:Good",
            "Good is not a score: a class with the decorator attn.score",
        ),
        ("{}/inherits.py:Inherits", "it is not a score: a class with the decorator"),
        ("{}/good.py:Good@123", "its source has changed and is now"),
        ("no_such_module:X", "no such module; a file is named as path/to/file.py:Name"),
        ("a b:X", "neither a module's name nor a file.py"),
    ],
)
def test_what_cannot_be_loaded_is_named(tmp_path, text, message):
    (tmp_path / "bad.py").write_text("\n1 / 0\n")
    (tmp_path / "syntax.py").write_text("def :\n")
    (tmp_path / "good.py").write_text("class Good:\n    pass\n")
    inherits = (
        "import attn\n\nclass Inherits(attn.Dot):\n    init = lambda *_: Inherits()\n"
    )
    (tmp_path / "inherits.py").write_text(inherits)
    with pytest.raises(SettingsError, match=f"^model.score=.*{message}"):
        tiny.resolve(model__score=text.format(tmp_path))


@pytest.mark.parametrize(
    ("group", "name"),
    [("model", "score"), ("data", "corpus"), ("training", "schedule")],
)
def test_a_runs_directory_does_not_start_code(tmp_path, group, name):
    path = tmp_path / "code.py"
    path.write_text("raise SystemExit('this was run')\n")
    config = {group: {name: f"{path}:X"}}
    with pytest.raises(OutsideError, match=r"code from outside.*--outside=.*code.py:X"):
        resolve(config, trusted=False)


def test_what_was_asked_for_is_run(cosine):
    settings.load_text(f"{cosine}:Cosine")
    resolved = tiny.resolve(model__score=f"{cosine}:Cosine")
    assert resolve(resolved.to_dict(), trusted=False) == resolved


def test_a_class_in_the_config_file_itself(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        COSINE + "\n\nfrom tests.experiments import tiny\n\n\n"
        "def get_config():\n"
        "    config = tiny.config()\n"
        "    config.model.score = Cosine\n"
        "    return config\n\n\n"
        "def sweep_scores():\n"
        "    for score in (Cosine, 'dot', attn.Additive):\n"
        "        yield {'model.score': score}\n"
    )
    module = load_config(str(path))
    config = module.get_config()
    assert isinstance(config, ml_collections.ConfigDict)
    planned = plan_trials(config, expand(sweeps_of(module), ["scores"], config))
    scores = [one.settings.to_dict()["model"]["score"] for one in planned]
    assert scores[0].startswith(f"{path}:Cosine@")
    assert scores[1:] == ["dot", "additive"]
    assert planned[0].settings == resolve(config)
    json.dumps([one.point for one in planned])


def test_positions_from_outside(tmp_path):
    path = tmp_path / "kerple.py"
    path.write_text(KERPLE)
    resolved = tiny.resolve(model__positions=f"{path}:Kerple(slope=2)")
    assert resolved.model.positions.slope == 2.0
    assert resolved.model.positions.in_layers


def test_a_corpus_from_outside(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "counting.py"
    path.write_text(SOURCE)
    corpus = f"{path}:Counting(count=150)"
    data = tiny.resolve(data__corpus=corpus, data__vocabulary_size=450).data
    prepared = dataset.prepare(data)
    assert prepared.counts["train"] == 150
    assert prepared.test.text.source[0] == "2000000 apples are on the table"


def test_a_corpus_from_outside_has_no_settings_of_others(tmp_path):
    path = tmp_path / "counting.py"
    path.write_text(SOURCE)
    with pytest.raises(
        SettingsError, match=r"data.pairs does not apply to data.corpus=/"
    ):
        tiny.resolve(data__corpus=f"{path}:Counting", data__pairs=200)


def test_a_file_that_ends_the_program_is_an_error(tmp_path):
    """The command would otherwise end with the file's status, and in silence."""
    path = tmp_path / "ends.py"
    path.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(SettingsError, match=r"ends\.py:2: SystemExit: 0"):
        settings.load_text(f"{path}:Cosine")
