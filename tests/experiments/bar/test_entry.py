"""What an entry may change, and at how many parameters it runs."""

import dataclasses

import pytest

import attn
from experiments.bar import entry, rules
from experiments.settings import SettingsError, resolve
from tests.experiments import own_parts

PLACE = own_parts.__file__
TASKS = rules.tasks_of("small")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "option"),
    [
        (f"{PLACE}:Distance", "score"),
        (f"{PLACE}:Heads", "heads"),
        (f"{PLACE}:Mixer", "mixing"),
        (f"{PLACE}:Twice", "mixing"),
    ],
)
def test_a_class_says_itself_what_it_changes(text, option):
    ((found, value),) = entry.read_changes([text]).items()
    assert found == option
    assert value.startswith(f"{text}@")


@pytest.mark.quick
def test_options_are_read_as_settings_are():
    texts = [
        "h_kv=1",
        "model.positions=rotary(base=10000.0)",
        "gate=head",
        "biases=True",
    ]
    assert entry.read_changes(texts) == {
        "h_kv": 1,
        # What is at its default is left out.
        "positions": "rotary",
        "gate": "head",
        "biases": True,
    }


@pytest.mark.quick
@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["d_ff=512"], "d_ff is nothing that an entry may change"),
        (["d_model=128"], "d_model is nothing that an entry may change"),
        (["rotary"], "give a class of your own, as my.py:Mine"),
        (["h=2", "h=4"], "h is given twice"),
        (["h_kv=one"], "give a number"),
        (["positions=rotery"], "rotary"),
        ([f"{PLACE}:Nothing"], "no class or function Nothing"),
        (["tests.experiments.bar.fakes:Run"], "Run is none of score, normaliser"),
    ],
)
def test_what_is_no_change_of_attention_is_refused(texts, said):
    with pytest.raises(SettingsError, match=said):
        entry.read_changes(texts)


@pytest.mark.quick
def test_base_is_each_task_at_each_rate_with_each_seed():
    points = entry.points("small", {}, range(2))
    assert len(points) == len(TASKS) * 2 * len(rules.RATES)
    config = rules.get_config("small")
    for point in points:
        settings = resolve(
            config.to_dict(), {k: x for k, x in point.items() if k != "label"}
        )
        assert settings.model.d_ff == 256
        assert settings.training.steps == settings.training.evaluate_every
    assert {point["seed"] for point in points} == {0, 1}


@pytest.mark.quick
def test_a_point_may_be_of_some_tasks_alone():
    labels = {point["label"] for point in entry.points("small", {}, [0], ["copy"])}
    assert labels == {"copy, 0.001", "copy, 0.003", "copy, 0.009"}


def model_of(changes, task):
    (point, *_) = entry.points("small", changes, [0], [task])
    point = {k: x for k, x in point.items() if k != "label"}
    return resolve(rules.get_config("small").to_dict(), point).model


def test_a_mixer_that_looks_ahead_is_in_the_encoder_too():
    model = model_of({"mixing": "recurrence(cell=gru)"}, "translation")
    assert model.encoder_mixing == model.decoder_mixing != attn.SelfAttention()
    assert model.positions == attn.NoPositions()


BACK = """
import dataclasses
import attn

@dataclasses.dataclass(frozen=True)
class Back(attn.DeltaNet):
    def check_direction(self, block, causal):
        if not causal:
            raise ValueError("it looks back only")
"""


def test_one_that_looks_back_alone_leaves_the_encoder_its_attention(tmp_path):
    (tmp_path / "back.py").write_text(BACK)
    changes = entry.read_changes([f"{tmp_path / 'back.py'}:Back"])
    model = model_of(changes, "translation")
    assert model.encoder_mixing == attn.SelfAttention()
    assert model.decoder_mixing != attn.SelfAttention()
    assert model.positions != attn.NoPositions()
    assert model_of(changes, "copy").positions == attn.NoPositions()


def test_a_mixer_that_attends_keeps_positions():
    model = model_of({"mixing": "short(inner=attention)"}, "copy")
    assert model.positions != attn.NoPositions()


def test_positions_that_are_asked_for_stay():
    changes = {"mixing": "short(inner=attention)", "positions": "none"}
    assert model_of(changes, "copy").positions == attn.NoPositions()


def test_what_an_entry_takes_the_feed_forward_networks_give():
    counts = entry.parameters("small", {"positions": "t5"})
    assert counts.keys() == {task.name for task in TASKS}
    for of_task in counts.values():
        assert abs(of_task["parameters"] / of_task["of base"] - 1) < 0.001
    assert counts["copy"]["d_ff"] < 256


def test_what_cannot_be_made_equal_is_refused():
    with pytest.raises(SettingsError, match=r"with d_ff=1 it is still \+\d"):
        entry.points("small", {"d_v": 200}, [0], ["copy"])


BREAKS = """
import attn

@attn.score
class Breaks:
    @classmethod
    def init(cls, key, h, d_q, d_k):
        return cls()

    def __call__(self, q, k):
        raise RuntimeError("no\\nscore")
"""


def test_a_class_that_raises_is_told_in_a_line(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    changes = entry.read_changes([f"{tmp_path / 'breaks.py'}:Breaks"])
    said = "cannot be built: RuntimeError: no; python -m launch.check says more"
    with pytest.raises(SettingsError, match=said):
        entry.points("small", changes, [0], ["copy"])


def test_options_that_contradict_each_other_are_told_as_settings_are():
    with pytest.raises(SettingsError, match=r"^d_r=8|^model\S*d_r=8"):
        entry.points("small", {"d_r": 8}, [0], ["copy"])


VARIANTS = [
    *(("score", name) for name in attn.SCORES),
    *(("normaliser", name) for name in attn.NORMALISERS),
    *(("positions", name) for name in attn.POSITIONS),
    *(("heads", name) for name in attn.HEADS),
    *(("residual", name) for name in attn.RESIDUALS),
    *(("mixing", name) for name in attn.MIXERS),
]


@pytest.mark.ci
@pytest.mark.parametrize(("option", "name"), VARIANTS, ids=str)
def test_every_variant_of_the_library_can_be_entered(option, name):
    changes = entry.read_changes([f"{option}={name}"])
    # The task whose model has every part.
    assert entry.points("small", changes, [0], ["translation"])


@pytest.mark.quick
def test_sizes_have_the_same_tasks():
    named = [[task.name for task in rules.tasks_of(size)] for size in rules.SIZES]
    assert named[0] == named[1]
    with pytest.raises(ValueError, match="known: small, device"):
        rules.tasks_of("large")


@pytest.mark.quick
@pytest.mark.parametrize("size", rules.SIZES)
def test_the_rules_are_a_config_with_its_sweeps(size):
    config = rules.get_config(size)
    points = list(rules.sweep_tasks(config))
    assert [point["label"] for point in points] == [
        t.name for t in rules.tasks_of(size)
    ]
    for point in points:
        resolve(config.to_dict(), {k: x for k, x in point.items() if k != "label"})
    assert len(list(rules.sweep_rate())) == len(rules.RATES)


@pytest.mark.quick
def test_shown_values_are_in_their_unit():
    accuracy, characters = TASKS[0], TASKS[-1]
    assert accuracy.shown(0.5) == 50
    assert characters.shown(0.5) == 0.5
    assert dataclasses.replace(accuracy, unit="bits").shown(0.5) == 0.5
