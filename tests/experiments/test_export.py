"""Exported models are the same models: loaded again, and in CTranslate2 with a beam."""

import json

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import sentencepiece

import attn.io
from attn import Context, Mask
from experiments.data import dataset
from experiments.errors import UserError
from experiments.export import export
from experiments.export.ctranslate2 import check_ctranslate2
from experiments.inference import Sampler, Translator, load_model
from experiments.settings import resolve
from experiments.system.files import DamagedError
from experiments.training import loop
from experiments.trial.program import build_model
from tests.experiments import tiny


def train(directory, **changes):
    # Rates at which a few steps learn something: searches of all models else agree.
    own = tiny.resolve(**{"training__steps": 24, **changes})
    loop.run(own, dataset.prepare(own.data), directory)
    return directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(
        tmp_path_factory.mktemp("trained"),
        evaluation__weights="best",
        training__keep_best=True,
    )


LINES = ["3 days ago", "May 4", "", "the end of a day in June", "12 hours", "Monday"]


def test_arrays_loaded_again_translate_alike(trained, tmp_path):
    used = export(trained, tmp_path / "exported", "safetensors")
    assert str(tmp_path / "exported") in used
    ours, theirs = (
        Translator(x, n_best=2, beam=3) for x in (trained, tmp_path / "exported")
    )
    assert ours.n_best(LINES) == theirs.n_best(LINES)
    about = json.loads((tmp_path / "exported/export.json").read_text())
    assert about["weights"] == "best" and about["exported_from"] == str(trained)
    arrays = attn.io.load(tmp_path / "exported/model.safetensors")
    kernel = load_model(trained).state.params["encoder_0"]["self_attention"]["w_q"]
    np.testing.assert_array_equal(arrays["encoder_0/self_attention/w_q"], kernel)


@pytest.mark.ci
@pytest.mark.parametrize(
    "changes",
    [
        dict(model__kind="language", model__score="annealed(start=3)"),
        dict(
            model__kind="language",
            model__decoder_mixing="mamba3",
            model__positions="none",
        ),
    ],
)
def test_language_models_sample_alike(tmp_path, changes):
    train(tmp_path / "trained", **changes)
    export(tmp_path / "trained", tmp_path / "exported", "safetensors")
    ours, theirs = (Sampler(tmp_path / name)(3) for name in ("trained", "exported"))
    assert ours == theirs


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "export.json"])
def test_an_export_that_was_changed_is_refused(trained, tmp_path, name):
    export(trained, tmp_path / "exported", "safetensors")
    path = tmp_path / "exported" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises((DamagedError, UserError)):
        load_model(tmp_path / "exported")


def test_nothing_is_written_over(trained, tmp_path):
    (tmp_path / "own").write_text("mine")
    with pytest.raises(UserError, match="holds files: name a new directory"):
        export(trained, tmp_path, "safetensors")
    with pytest.raises(
        UserError, match="--format=onnx is unknown; known: safetensors, "
    ):
        export(trained, tmp_path / "new", "onnx")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.kind": "rnn"}, "model.kind=rnn"),
        ({"model.score": "dot"}, "model.score=dot"),
        ({"model.decoder_mixing": "deltanet"}, "model.mixing=DeltaNet"),
        ({"model.positions": "rotary"}, "positions=Rotary"),
        # Of its table evaluation reads rows far apart, where CTranslate2 has the first.
        ({"model.positions": "randomised"}, "positions=Randomised"),
        ({"model.cross.h": 2, "model.cross.d_k": 32}, "h=2 of a layer"),
        ({"model.d_k": 8}, "h·d_k=32 or"),
        ({"model.norm": "both"}, "Both"),
        ({"model.norm": "attnres"}, "AttnRes"),
        ({"model.norm": "pre(kind=rms)"}, "kind='rms'"),
        ({"model.norm": "post_final"}, "PostFinal"),
        ({"model.feed_forward": "gated"}, "model.feed_forward="),
        ({"model.h_kv": 1}, "model.h_kv=1"),
        ({"model.heads": "talking"}, "model.heads=Talking"),
        ({"model.selection": "argmax"}, "model.selection=argmax"),
    ],
)
def test_what_ctranslate2_cannot_express_is_named(changes, message):
    from experiments.configs import quick

    described = resolve(quick.get_config(), changes).model
    with pytest.raises(UserError, match=f"CTranslate2 cannot express .*{message}"):
        check_ctranslate2(described)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(model__norm="pre", model__feed_forward="gelu", model__positions="learned"),
        dict(model__embeddings="separate", model__encoder__N=2, model__norm="pre"),
    ],
)
def test_ctranslate2_translates_alike(tmp_path, changes):
    ctranslate2 = pytest.importorskip("ctranslate2")
    train(tmp_path / "trained", **changes)
    export(tmp_path / "trained", tmp_path / "exported", "ctranslate2")
    place = str(tmp_path / "exported")
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=f"{place}/vocabulary.model"
    )
    about = json.loads((tmp_path / "exported/config.json").read_text())
    assert about["add_source_eos"] and about["layer_norm_epsilon"] == 1e-6
    translator = ctranslate2.Translator(place, device="cpu", compute_type="float32")
    sources = pieces.encode([line for line in LINES if line], out_type=str)
    for beam in (1, 3):
        # Its penalty is another than ours, which is none with alpha=0.
        found = translator.translate_batch(
            sources,
            beam_size=beam,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=11,
        )
        theirs = [pieces.decode(one.hypotheses[0]) for one in found]
        ours = Translator(tmp_path / "trained", beam=beam, alpha=0.0)
        assert ours([line for line in LINES if line]) == theirs


def loaded(directory):
    """(start, step, arrays, about) from the files alone."""
    read = lambda name: jax.export.deserialize((directory / name).read_bytes())
    arrays = safetensors.numpy.load_file(directory / "model.safetensors")
    about = json.loads((directory / "export.json").read_text())
    return read("start.stablehlo"), read("step.stablehlo"), arrays, about


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(model__kind="rnn"),
        dict(model__decoder_mixing="mamba3", model__norm="pre", model__score="softcap"),
    ],
)
def test_stablehlo_decodes_alike(tmp_path, changes):
    pytest.importorskip("flatbuffers")
    train(tmp_path / "trained", **changes)
    export(tmp_path / "trained", tmp_path / "exported", "stablehlo")
    start, step, arrays, about = loaded(tmp_path / "exported")
    place = str(tmp_path / "exported/vocabulary.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=place)
    ours = Translator(tmp_path / "trained", beam=1)
    for line in LINES[:2]:
        ids = [*pieces.encode(line), about["eos"]]
        source = np.zeros((1, about["source_tokens"]), np.int32)
        source[0, : len(ids)] = ids
        state = start.call(arrays, source, np.array([len(ids)], np.int32))
        tokens, written = np.array([about["bos"]], np.int32), []
        for t in range(about["tokens"] - 1):
            logits, state = step.call(arrays, tokens, np.int32(t), state)
            tokens = np.asarray(logits[:, 3:].argmax(-1) + 3, np.int32)
            if logits[0, about["eos"]] >= logits[0, tokens[0]]:
                break
            written.append(int(tokens[0]))
        assert [pieces.decode(written)] == ours([line])


def test_stablehlo_of_a_language_model_has_the_logits_of_a_full_pass(tmp_path):
    pytest.importorskip("flatbuffers")
    # Another score at every update, so that it shows of which one the logits are.
    train(
        tmp_path / "trained", model__kind="language", model__score="annealed(start=9)"
    )
    export(tmp_path / "trained", tmp_path / "exported", "stablehlo")
    start, step, arrays, about = loaded(tmp_path / "exported")
    trained = load_model(tmp_path / "trained")
    text = np.array([[about["bos"], 7, 300, 41, 7]], np.int32)
    ctx = Context(Mask.causal(), step=trained.state.step)
    hidden = build_model(trained.program).apply(
        jax.tree.map(jnp.asarray, trained.state.variables), text, ctx
    )
    expected = np.asarray(hidden[0] @ trained.state.params["embedding"].T)
    state = start.call(arrays)
    for t, token in enumerate(text[0]):
        logits, state = step.call(arrays, token[None], np.int32(t), state)
        np.testing.assert_allclose(logits[0], expected[t], rtol=1e-5, atol=1e-5)


@pytest.mark.ci
def test_labels_are_no_text(tmp_path):
    train(tmp_path / "trained", model__kind="classifier", data__corpus="first")
    with pytest.raises(UserError, match="writes no text"):
        export(tmp_path / "trained", tmp_path / "exported", "stablehlo")
