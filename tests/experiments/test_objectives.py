"""What is asked of a model: who can do it, what is scored, and a trial of labels."""

import functools
import json

import jax
import numpy as np
import pytest

from attn import Context, Mask, keys_of_rows
from experiments.data import dataset
from experiments.data.batches import Batches, Encoded, assemble, corpus, padded
from experiments.data.corpora import CorpusError
from experiments.errors import WorkdirError
from experiments.evaluation.metrics import ACCURACY, MACRO_F1, METRICS, Texts
from experiments.evaluation.perplexity import of_scores
from experiments.inference import Labeller, Sampler, Translator
from experiments.objectives import (
    NOTHING_ID,
    OBJECTIVES,
    Answer,
    Continue,
    Label,
    Translate,
    Write,
)
from experiments.report.write import write_report
from experiments.settings import MODELS, SettingsError, resolve
from experiments.sweep.plan import check_all, plan_trials
from experiments.system.signals import Interrupted
from experiments.training import loop
from experiments.trial import cost, flops
from experiments.trial.program import (
    build_model,
    hyper_of,
    initial_state,
    program_of,
)
from experiments.trial.step import summed_gradients, token_losses
from tests.experiments import tiny

SIZES = dict(
    model__kind="classifier",
    data__corpus="first",
    data__length=9,
    data__symbols=5,
    data__markers=3,
    training__eps_ls=0.0,
)


def settings(**changes):
    return tiny.resolve(**{**SIZES, **changes})


@functools.cache
def trial(**changes):
    """(program, state) of an untrained classifier of 3 labels."""
    own = settings(**changes)
    program = program_of(own, own.data.vocabulary_size, 48)
    return program, initial_state(program, own)


def pairs(*lengths):
    rng = np.random.default_rng(0)
    sources = [rng.integers(5, 13, n).astype(np.int32) for n in lengths]
    return Encoded(sources, [np.array([i % 3], np.int32) for i in range(len(lengths))])


def test_every_kind_of_model_has_an_objective_and_every_objective_a_model():
    asked = {kind for cls in OBJECTIVES.values() for kind in cls.models}
    assert asked == set(MODELS)
    assert {cls.targets for cls in OBJECTIVES.values()} == {"texts", "places", "labels"}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_its_metrics_are_known_and_make_sense(name):
    objective = OBJECTIVES[name]()
    known = {metric.key: metric for metric in METRICS}
    assert objective.loss_metric in known
    scored = [known[key] for key in objective.metrics if key in known]
    of_texts = [metric for metric in scored if metric.split == "test"]
    assert bool(of_texts) == objective.writes
    assert all(objective.targets in metric.targets for metric in of_texts)


def test_a_language_model_continues_the_target_of_translations():
    assert Translate().for_model("language") == Continue()
    assert Translate().for_model("rnn") == Translate() != Write()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(model__kind="transformer"),
            "data.corpus=first has objective=label: model.kind=transformer must be classifier",
        ),
        (dict(data__corpus="cldr"), "objective=translate: model.kind=classifier must"),
        (
            dict(evaluation__metric="experiments.evaluation.metrics:Bleu"),
            "is no metric of objective=label, which has cross_entropy, accuracy, macro_f1",
        ),
    ],
)
def test_what_is_not_asked_is_refused(changes, message):
    base = {"model.kind": "classifier", "data.corpus": "first"}
    point = {key.replace("__", "."): value for key, value in changes.items()}
    with pytest.raises(SettingsError, match=message):
        resolve({}, base | point)


def test_an_unknown_objective_is_refused():
    data = dict(corpus="tsv", directory="x", objective="classify")
    with pytest.raises(SettingsError, match="did you mean label"):
        resolve({"data": data})
    with pytest.raises(SettingsError, match=r"answers.*did you mean data\.objective"):
        resolve({"data": dict(corpus="tsv", directory="x", answers=True)})


def test_rows_of_labels_have_one_target_for_each_source():
    flat = corpus(pairs(2, 3, 1))
    slots = np.array([[0, 2, 1], [1, -1, -1]], np.int32)
    batch = Label().batch(assemble(flat, slots, 12, np), 3)
    assert batch.target_out.tolist() == [[0, 2, 1], [1, 0, 0]]
    assert batch.target_segments.tolist() == [[1, 2, 3], [1, 0, 0]]
    assert Label().scored(batch).tolist() == [[True] * 3, [True, False, False]]
    assert batch.source.shape == (2, 12)


def test_answers_and_sentences_are_scored_where_they_are():
    own = tiny.resolve(model__kind="language", data__corpus="recall", data__length=23)
    train = dataset.prepare(own.data).train
    batch = next(Batches(train, batch_size=2, sequence_length=48, seed=0))
    scored = Answer().scored(batch)
    assert scored.any() and (batch.target_out[scored] > NOTHING_ID).all()
    assert (Translate().scored(batch) == (batch.target_segments > 0)).all()


def test_the_pooling_is_that_of_the_formula():
    program, state = trial()
    model = build_model(program)
    variables = state.variables
    source = pairs(7).source[0][None]
    states = np.asarray(
        model.apply(variables, source, Context(Mask()), method="encode"), float
    )
    out = model.apply(variables, source, np.zeros((1, 1), int), Context(), Context())
    params = jax.tree.map(lambda x: np.asarray(x, float), state.params)
    score = {name: x[0] for name, x in params["cross_attention"]["score"].items()}
    hidden = np.tanh(states[0] @ score["w_k"] + params["query"] @ score["w_q"])
    weights = np.exp(hidden @ score["v"])
    expected = weights / weights.sum() @ states[0]
    np.testing.assert_allclose(out[0, 0, :-1], expected, atol=1e-5)
    assert out[0, 0, -1] == 1


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_label_does_not_depend_on_the_batch(positions):
    """Alone, in a batch, with more padding, and packed with others in a row."""
    program, state = trial(model__positions=positions)
    texts = pairs(3, 11, 5, 7)
    losses = jax.jit(functools.partial(token_losses, program))
    alone = np.zeros(4)
    for i, (source, target) in enumerate(zip(*texts, strict=True)):
        one = Encoded([source], [target])
        ((_, batch),) = padded(one, 1, len(source) + 1, Label())
        alone[i] = losses(state, batch)[0, 0]
    ((order, batch),) = padded(texts, 6, 20, Label())
    np.testing.assert_allclose(losses(state, batch)[:4, 0], alone[order], rtol=1e-5)
    slots = np.array([[0, 1], [2, 3]], np.int32)
    batch = Label().batch(assemble(corpus(texts), slots, 24, np), 2)
    np.testing.assert_allclose(losses(state, batch), alone[slots], rtol=1e-5)


@pytest.mark.parametrize("score", ["bilinear", "scaled_dot"])
def test_its_products_are_those_of_its_program(score):
    program, state = trial(model__pooling_score=score)
    model = build_model(program)
    variables = state.variables
    n = 13

    def forward(source):
        hidden = model.apply(variables, source, source[:, :1], Context(), Context())
        return hidden[..., :-1] @ state.params["output"].T

    counted = flops.products_of(
        jax.make_jaxpr(forward)(np.zeros((1, n), np.int32)).jaxpr
    )
    assert counted == model.products(n, 1)
    assert flops.of_training(program, [n], [2]) == 6 * counted


def test_what_is_known_before_the_text_is_read():
    _, state = trial()
    count = sum(x.size for x in jax.tree.leaves(state.params))
    assert cost.parameters(settings()) == count < cost.memory(settings()) / 4
    point = {key.replace("__", "."): value for key, value in SIZES.items()}
    check_all(plan_trials(tiny.config(), [point]))
    # Files say only once they are read how many labels they have.
    data = dict(corpus="tsv", directory="x", objective="label")
    files = resolve({"model": {"kind": "classifier"}, "data": data})
    assert cost.parameters(files) is None is cost.memory(files)


def write_texts(folder, train, heldout):
    for name, lines in dict(train=train, val=heldout, test=heldout).items():
        text = "".join(f"{source}\t{label}\n" for source, label in lines)
        (folder / f"{name}.tsv").write_text(text)
    data = dict(
        corpus="tsv",
        directory=str(folder),
        objective="label",
        vocabulary_size=382,
        max_length=30,
    )
    return resolve({"model": {"kind": "classifier"}, "data": data}).data


TRAIN = [
    ("a good one, the best of all", "very good"),
    ("a bad one that nobody liked", "bad"),
    ("good and much liked", "very good "),
]


def test_labels_are_those_of_training(tmp_path):
    prepared = dataset.prepare(write_texts(tmp_path, TRAIN, TRAIN[:2]))
    assert prepared.labels == ("bad", "very good")
    target = prepared.train.target
    assert target.ids[target.starts + 1].tolist() == [1, 0, 1]
    assert [ids.tolist() for ids in prepared.test.ids.target] == [[1], [0]]
    # Labels are no text: no token is spelled by them.
    assert "v" not in "".join(prepared.vocabulary().tokens(range(4, 382)))


@pytest.mark.parametrize(
    ("train", "heldout", "message"),
    [
        (
            TRAIN,
            [TRAIN[0], ("x", "fair")],
            "val.tsv:2: label 'fair' is none of the 2 of",
        ),
        (TRAIN[::2], TRAIN[:1], "training has 1 labels, of which there must be 2 to"),
    ],
)
def test_labels_that_cannot_be_learned(tmp_path, train, heldout, message):
    with pytest.raises(CorpusError, match=message):
        dataset.prepare(write_texts(tmp_path, train, heldout))


def test_scores_of_labels():
    texts = Texts(["a b", "c", "c", "d"], ["a b", "a b", "c", "c"], labels=True)
    assert ACCURACY.of_sentences(texts).tolist() == [[1, 1], [0, 1], [1, 1], [0, 1]]
    # F1 of a b: 2/3, of c: 2/4, of d: 0.
    assert MACRO_F1.of_corpus(texts) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert of_scores(dict(cross_entropy=0.5)) == pytest.approx(np.exp(0.5))
    assert of_scores(dict(perplexity=1.5)) == 1.5 and of_scores({}) == np.inf


def test_the_task_says_no_more_than_its_markers():
    prepared = dataset.prepare(settings(data__pairs=3000).data)
    vocabulary = prepared.vocabulary()
    assert vocabulary.size == 5 + 3 + 5 and prepared.labels == ("m0", "m1", "m2")
    for source, label in zip(*prepared.test.text, strict=True):
        markers = [symbol for symbol in source.split() if symbol[0] == "m"]
        assert sorted(markers) == ["m0", "m1", "m2"] and label == markers[0]
    target = prepared.train.target
    counts = np.bincount(target.ids[target.starts + 1])
    assert (abs(counts / 3000 - 1 / 3) < 0.03).all()


OWN = '''
import dataclasses

from experiments.objectives import Label


@dataclasses.dataclass(frozen=True)
class Doubled(Label):
    """A loss of twice the size."""

    factor: float = 2.0

    def loss(self, params, hidden, batch, weights, eps_ls):
        loss, nll = super().loss(params, hidden, batch, weights, eps_ls)
        return self.factor * loss, nll
'''


def test_a_custom_objective(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    data = dict(
        corpus="tsv", directory="x", objective=f"{tmp_path}/own.py:Doubled(factor=3)"
    )
    own = resolve({"model": {"kind": "classifier"}, "data": data})
    assert own.objective.factor == 3 and own.objective.metrics == Label.metrics
    (outside,) = own.outside(["data"])
    assert outside.name == "Doubled"
    assert resolve(own.to_dict()) == own
    program, state = trial()
    _, batch = next(padded(pairs(3, 5), 2, 8, Label()))
    losses = {}
    for objective in (Label(), own.objective):
        gradients, *sums = summed_gradients(
            program._replace(objective=objective),
            state,
            hyper_of(settings()),
            batch,
            keys_of_rows(jax.random.key(0), np.arange(2)),
        )
        losses[objective] = (gradients["params"]["query"], *sums)
    plain, tripled = losses.values()
    np.testing.assert_allclose(tripled[0], 3 * plain[0], rtol=1e-4)
    assert tripled[1] == pytest.approx(3 * plain[1]) and tripled[2] == plain[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    own = settings(evaluation__head_importance=True, training__keep_best=True)
    workdir = tmp_path_factory.mktemp("labels")
    return workdir, own, loop.run(own, dataset.prepare(own.data), workdir)


def test_a_trial_of_labels(trained):
    workdir, _, result = trained
    assert result["status"] == "finished"
    assert not {"bleu", "perplexity", "exact_match", "accuracy_by"} & set(result)
    assert 0 <= result["accuracy"] <= 1 and 0 <= result["macro_f1"] <= 1
    assert 0 < result["cross_entropy"] < 3
    given = (workdir / "translations.txt").read_text().splitlines()
    asked = (workdir / "references.txt").read_text().splitlines()
    right = np.mean([ours == theirs for ours, theirs in zip(given, asked, strict=True)])
    assert right == pytest.approx(result["accuracy"])
    report = write_report(workdir)
    for path in (report.markdown, report.html):
        text = path.read_text("utf-8")
        assert "accuracy" in text and "cross-entropy" in text
        assert "BLEU" not in text
    assert "perplexity" not in report.markdown.read_text("utf-8")
    example, *_ = json.loads((workdir / "examples.json").read_text())
    assert example["target_tokens"] == [example["translation"]]
    weights = np.load(workdir / "examples.npz")["0/cross"]
    # One layer and head of one query; the text's tokens and its end mark.
    assert weights.shape == (1, 1, 1, len(example["source_tokens"]))
    assert weights.sum() == pytest.approx(1, abs=1e-2)


def test_its_model_is_used_for_labels_alone(trained):
    workdir, _, _ = trained
    given = (workdir / "translations.txt").read_text().splitlines()
    sources = (workdir / "sources.txt").read_text().splitlines()
    assert Labeller(workdir)(sources) == given and Labeller(workdir)([]) == []
    for use in (Translator, Sampler):
        with pytest.raises(WorkdirError, match=r"inference\.Labeller uses it"):
            use(workdir)


def test_it_resumes_bit_for_bit(trained, tmp_path):
    whole, own, expected = trained
    prepared = dataset.prepare(own.data)
    with pytest.raises(Interrupted):
        loop.run(own, prepared, tmp_path, interruption=tiny.StopAt(1))
    result = loop.run(own, prepared, tmp_path)
    for name in ("cross_entropy", "accuracy", "macro_f1", "beside"):
        assert result[name] == expected[name]
    arrays = [np.load(folder / "sentences.npz") for folder in (whole, tmp_path)]
    for name in arrays[0]:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])
