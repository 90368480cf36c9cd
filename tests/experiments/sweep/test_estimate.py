"""Estimates against true counts, against what XLA needed, and against sums done by hand."""

import math

import jax
import pytest
import rich.console

from experiments.configs import quick
from experiments.settings import SettingsError, default_config, override, resolve
from experiments.sweep import estimate
from experiments.sweep.plan import Trial, plan_trials
from experiments.system import machine
from experiments.system.machine import Machine
from experiments.training.out_of_memory import advice
from experiments.trial import cost
from experiments.trial.cost import program_without_corpus
from experiments.trial.program import State, count_parameters, initial_variables
from tests.experiments import own_parts, tiny, tiny_config


def changed(config, **changes):
    return resolve(
        config, {key.replace("__", "."): value for key, value in changes.items()}
    )


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(model__positions="learned", model__N=3),
        dict(model__N=2, model__embeddings="separate"),
        dict(
            model__norm="pre",
            model__positions="t5",
            model__biases=True,
            model__score="additive",
            model__N=2,
        ),
    ],
)
def test_parameters_are_those_of_the_whole_model(changes):
    settings = tiny.resolve(**changes)
    program = program_without_corpus(settings)
    shapes = jax.eval_shape(lambda: initial_variables(program, jax.random.key(0)))
    state = State(0, shapes["params"], shapes["positions"], None)
    assert cost.parameters(settings) == count_parameters(settings, state)


@pytest.mark.parametrize(
    ("changes", "temporaries"),
    [
        (dict(), 46_556_560),
        (dict(model__N=1), 25_420_960),
        (dict(training__batch_size=32), 91_752_336),
        (dict(model__d_ff=512), 55_469_456),
        (dict(model__d_model=128), 58_926_736),
        (dict(model__h=8), 69_281_168),
        (dict(model__h=1), 29_509_008),
        (dict(model__h_kv=1), 43_573_376),
        (dict(model__d_c=16), 48_668_944),
        (dict(model__heads="talking"), 61_006_320),
        (dict(model__positions="cope"), 108_326_560),
        (dict(model__positions="cope", training__sequence_length=128), 350_273_312),
        (dict(training__sequence_length=128), 116_950_672),
        (dict(data__vocabulary_size=1600), 50_242_960),
    ],
)
def test_memory_is_near_what_xla_needed(changes, temporaries):
    """`temporaries`: those of the compiled step by memory_analysis(), JAX 0.10.2 on a
    CPU; gradients are among them."""
    settings = changed(quick.get_config(), **changes)
    assert cost.activation_memory(settings) + 4 * cost.parameters(
        settings
    ) == pytest.approx(temporaries, rel=0.1)


def with_own(**changes):
    """The tiny trial with parts of a user's own."""
    point = {key: value for key, value in tiny.POINT.items() if key not in tiny.CLDR}
    for key, name in changes.items():
        point[key.replace("__", ".")] = f"{own_parts.PLACE}:{name}"
    settings = resolve(override(default_config(), point))
    return Trial("own", "own", {}, settings)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("model__decoder_mixing", "Mixer"),
        ("model__heads", "Heads"),
        ("model__score", "Distance"),
        ("data__corpus", "Symbols"),
    ],
)
def test_what_is_not_the_librarys_is_unknown(key, name):
    own = with_own(**{key: name})
    (found,) = estimate.estimate_all([own])
    assert [found.memory, found.seconds] == [None] * 2
    # The products of a model are counted from its program; nobody counts unread symbols.
    unknown = 4 if key == "data__corpus" else 2
    assert [found.step, found.work].count(None) == unknown - 2
    assert name in "".join(found.unknown)
    (known,) = estimate.estimate_all([Trial("tiny", "tiny", {}, tiny.resolve())])
    assert not known.unknown
    console = rich.console.Console(width=160)
    with console.capture() as captured:
        console.print(estimate.table([found], 1))
    assert captured.get().split()[-4:].count("unknown") == unknown
    totals = estimate.totals([found, known])
    assert totals.endswith("; without what is unknown of 1 of 2 groups")
    flops = "FLOPs unknown, " if unknown == 4 else ""
    assert f"{flops}unknown time of" in estimate.totals([found])
    # Nobody is refused by a number that is not known.
    cost.check_memory(own.settings, CPU._replace(memory=1))
    assert "how much training needs is not known; training.accumulate=4" in advice(
        own.settings, 1, 1, None
    )


def test_parameters_of_layers_that_differ():
    heads = f"{own_parts.PLACE}:Heads"
    settings = resolve(
        tiny.resolve(model__N=3).to_dict(), {"model.decoder.layer_2.heads": heads}
    )
    # A number in the self-attention of one layer.
    assert cost.parameters(settings) == cost.parameters(tiny.resolve(model__N=3)) + 1


def test_a_corpus_of_symbols_says_how_many_when_it_is_read():
    assert cost.parameters(with_own(data__corpus="Symbols").settings) is None


def test_a_layout_is_chosen_by_what_is_assumed():
    """Where nothing is known a trial counts as one of the library's would, or by its size."""
    own = with_own(data__corpus="Symbols").settings
    assert cost.flops_of_a_step(own) is None
    assert cost.assumed_flops_of_a_step(own) > 0
    assert cost.assumed_memory(own) > 4 * 4 * cost.assumed_parameters(own)


def test_memory_counts_what_the_optimizer_keeps():
    adam, sgd, ema, lion = (
        tiny.resolve(**changes)
        for changes in (
            dict(),
            dict(training__optimizer="sgd"),
            dict(training__ema=0.9),
            dict(training__optimizer="lion"),
        )
    )
    p = cost.parameters(adam)
    # Adam counts its steps, by an int32.
    count = 4
    assert [
        cost.memory(one) - cost.activation_memory(one) for one in (adam, sgd, ema, lion)
    ] == [16 * p + count, 8 * p, 20 * p + count, 12 * p + count]


def test_parts_remat_and_bfloat16_keep_less():
    logits = 4 * 4 * 48 * 500
    layers = cost.activation_memory(tiny.resolve(model__N=3)) - logits
    assert layers == 4 * 4 * 48 * 3 * (20 * 16 + 4 * 24 + 6 * (2 * 16 + 2.5 * 48))
    assert (
        cost.activation_memory(tiny.resolve(model__N=3, training__accumulate=2))
        == (layers + logits) / 2
    )
    assert (
        cost.activation_memory(tiny.resolve(model__N=3, training__precision="bfloat16"))
        == layers / 2 + logits
    )
    assert (
        cost.activation_memory(tiny.resolve(model__N=3, training__remat=True))
        == layers / 3 + 4 * 4 * 48 * 6 * 16 + logits
    )
    # Rows too long for textbook attention have no weights to keep.
    longer = cost.activation_memory(tiny.resolve(training__sequence_length=257))
    assert longer == 4 * 4 * 257 * ((20 * 16 + 4 * 24 + 6 * 2 * 16) + 500)


def test_time_is_products_and_passes(monkeypatch):
    """A product of (192, 16) and (16, 24) in 1 s, a pass over 4 MiB in 2 s."""
    seconds = {((192, 16), (16, 24)): 1.0, ((2**20,),): 2.0}
    monkeypatch.setattr(
        estimate, "_fastest", lambda function, *shapes, dtype: seconds[shapes]
    )
    settings = tiny.resolve()
    expected = (
        cost.flops_of_a_step(settings) / (2 * 192 * 16 * 24)
        + 6.5 * cost.activation_memory(settings) / 2**21
    )
    assert estimate.seconds_of_a_step(settings) == pytest.approx(expected)
    # Nothing is measured that might not fit.
    monkeypatch.setattr(
        estimate,
        "_fastest",
        lambda _, *shapes, dtype: 1 / (max(map(math.prod, shapes)) <= 2**24),
    )
    assert (
        estimate.seconds_of_a_step(
            tiny.resolve(model__d_model=2**16, model__d_ff=2**20)
        )
        > 0
    )
    # A pair that fills a row of 48: 96 tokens through 16·(3·32 + 2·24) numbers, 48
    # through the vocabulary's 500.
    pairs = 48 * 48 * 2 + 48 * 49 // 2
    assert cost.flops_of_a_step(settings) == 6 * 4 * (
        96 * 16 * (3 * 32 + 48) + 48 * 16 * 500 + pairs * 32
    )


def test_a_group_is_what_can_share_a_program(monkeypatch):
    monkeypatch.setattr(estimate, "_fastest", lambda function, *shapes, dtype: 1.0)
    points = [
        {"label": "base"},
        {"label": "base", "seed": 1},
        {"model.h": 1},
        {"model.P_drop": 0.3},
        {"model.positions": "learned", "training.steps": 24},
        {"model.h": 1, "training.learning_rate": 3.0},
        {"data.pairs": 400},
        {"evaluation.beam": 2},
        {"training.batch_size": 8},
        {"training.ema": 0.5},
    ]
    trials = plan_trials(tiny_config.get_config(), points)
    groups = estimate.estimate_all(trials)
    assert [(one.rows, one.trials) for one in groups] == [
        (("base", "P_drop=0.3", "positions=learned steps=24"), 4),
        (("h=1", "h=1 learning_rate=3.0"), 2),
        (("pairs=400",), 1),
        (("beam=2",), 1),
        (("batch_size=8",), 1),
        (("ema=0.5",), 1),
    ]
    first = groups[0]
    assert first.work == first.step * (3 * 12 + 24)
    # It differs from base in how it is scored, and is not trained.
    assert groups[3].work == groups[3].seconds == 0
    assert groups[4].work > 0
    assert first.parameters - groups[2].parameters == 2 * 48 * 16


def test_the_table_reads_at_a_glance():
    groups = [
        estimate.Estimate(
            ("base", "(D) a", "[b]", "c"),
            18,
            407_296,
            281 * 10**6,
            20_248 * 10**9,
            90 << 20,
            653,
        ),
        estimate.Estimate(
            ("big",), 3, 1_486_336, 35 * 10**12, 107 * 10**17, 52 << 30, 7e8
        ),
        estimate.Estimate(("not shown",), 1, 1, 1, 1, 1, 1.0),
    ]
    console = rich.console.Console(width=160)
    with console.capture() as captured:
        console.print(estimate.table(groups, 2))
    *_, first, second = captured.get().strip().splitlines()
    assert first.split("  ")[0].strip() == "base, (D) a, [b] and 1 more"
    assert first.split()[-10:] == "18 407,296 281 M 20.2 T 90 MiB 10.9 min".split()
    assert second.split() == "big 3 1,486,336 35 T 10.7 E 52.0 GiB 8,101.9 days".split()
    assert estimate.totals(groups[:1]).startswith(
        "about 20.2 T FLOPs, 10.9 min of training steps on 1 × cpu,"
    )
    assert estimate.totals(groups[2:]).startswith("about 1 FLOPs, 1 s of")


MEMORY = 2**30
CPU, GPU, GPUS = (
    Machine(backend, devices, 8, MEMORY)
    for backend, devices in (("cpu", 1), ("gpu", 1), ("gpu", 4))
)


def refused(settings, machine, **layout):
    with pytest.raises(SettingsError) as caught:
        cost.check_memory(settings, machine, **layout)
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_what_would():
    """64 rows of 256 tokens through 8 layers of d_model 64 keep about 5.3 GiB."""
    large = changed(
        quick.get_config(),
        model__N=8,
        training__batch_size=64,
        training__sequence_length=256,
    )
    need = cost.memory(large)
    assert refused(large, CPU) == (
        f"training needs about {need / 2**30:.1f} GiB of memory and this machine has 1.0 GiB"
        "; training.accumulate=8 should fit"
    )
    fitting = changed(large.to_dict(), training__accumulate=8)
    cost.check_memory(fitting, CPU)
    assert (
        cost.memory(fitting)
        <= MEMORY
        < cost.memory(changed(large.to_dict(), training__accumulate=4))
    )
    # An accelerator is believed up to twice its memory; rows are split over four.
    assert "a device has 1.0 GiB; training.accumulate=4 should fit" in refused(
        large, GPU
    )
    cost.check_memory(large, GPUS)
    assert cost.memory(large, 4) < need / 3
    wide = changed(quick.get_config(), model__d_ff=2**20)
    assert refused(wide, CPU).endswith(
        "; a smaller model should fit, or a smaller training.batch_size times "
        "training.sequence_length"
    )
    cost.check_memory(wide, CPU._replace(memory=None))


def test_trials_side_by_side_need_their_sum():
    settings = changed(quick.get_config(), training__batch_size=64)
    together = -(-MEMORY // cost.memory(settings))
    for layout in (dict(workers=together), dict(lanes=together)):
        assert f"{together} trials at once need about 1.0 GiB" in refused(
            settings, CPU, **layout
        )
    assert "--workers=1 --lanes=1" in refused(settings, CPU, workers=together)
    cost.check_memory(settings, CPU, workers=together - 1)
    assert cost.most_at_once(settings, CPU) == together - 1
    assert cost.most_at_once(settings, CPU._replace(memory=1)) == 1
    # As many as would be twice the memory of one.
    cost.check_memory(settings, GPUS, lanes=4 * together)
    assert "trials at once" in refused(settings, GPUS, lanes=9 * together)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(evaluation__batch_size=2**16),
            "translating evaluation.batch_size=65536 sentences with evaluation.beam=1 needs",
        ),
        (
            dict(evaluation__beam=1000),
            "translating evaluation.batch_size=64 sentences with evaluation.beam=1000 needs",
        ),
        (
            dict(evaluation__examples=1000, training__sequence_length=256),
            "the attention of evaluation.examples=1000 takes",
        ),
    ],
)
def test_evaluation_needs_memory_too(changes, message):
    assert message in refused(changed(quick.get_config(), **changes), CPU)


@pytest.mark.parametrize("h_kv", [0, 1])
def test_a_search_needs_its_caches_at_least(h_kv):
    """Against arrays of the sizes that decoding makes."""
    settings = tiny.resolve(evaluation__beam=3, model__h_kv=h_kv)
    e = settings.evaluation
    m = settings.model
    shapes = []
    length = program_without_corpus(settings).length
    shapes += [
        (e.batch_size, h_kv or m.h, n, d)
        for n in (e.max_length * e.beam, length)
        for d in (m.d_k, m.d_v)
    ] * m.N
    shapes += [
        (e.batch_size, length, m.d_ff),
        (e.batch_size, e.beam, settings.data.vocabulary_size),
    ]
    expected = (
        4 * sum(math.prod(shape) for shape in shapes)
        + e.batch_size * e.beam * e.beam * e.max_length
    )
    assert cost.decoding_memory(settings) - 4 * cost.parameters(settings) == expected


def test_a_search_over_latents_keeps_them_alone():
    plain = tiny.resolve()
    latent = tiny.resolve(
        model__d_c=5, model__d_r=2, model__positions="rotary", model__biases=True
    )
    both = [cost.decoding_memory(x) - 4 * cost.parameters(x) for x in (plain, latent)]
    e = plain.evaluation
    m = plain.model
    own = e.max_length * e.beam
    entries = own + program_without_corpus(plain).length
    numbers = m.h * (m.d_k + m.d_v) * entries - (5 + 1) * entries - 2 * own
    assert both[0] - both[1] == 4 * e.batch_size * m.N * numbers


def test_this_machine_has_memory():
    here = machine.here()
    assert here == (
        jax.default_backend(),
        jax.local_device_count(),
        machine.cores(),
        machine.memory(),
    )
    assert 2**28 < here.memory < 2**50
