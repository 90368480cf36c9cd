"""A model as a plain dictionary of arrays, and such a dictionary as a file."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import RNN, T5, Context, LanguageModel, Learned, Transformer, config
from attn.io import from_arrays, load, save, to_arrays
from attn.nn.norms import PostFinal, Pre
from tests.attn.nn.modules import random_variables, sentences

D, H = 14, 2
SIZES = dict(N=2, d_model=D, d_ff=17, h=H, d_k=D // H, d_v=D // H)
OPTIONS = [
    dict(norm=Pre(), embeddings="separate", score="additive", positions=Learned()),
    dict(norm=PostFinal(), positions=T5(), score="bilinear", biases=False),
]


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def build(**options):
    """Returns a model, and variables at random."""
    defaults = dict(biases=True, positions=Learned())
    model = Transformer(config.Transformer(**SIZES | defaults | options), 29, 13)
    tokens = np.zeros((1, 1), np.int32)
    return model, random_variables(model, *sentences(tokens, tokens), seed=3)


@pytest.mark.parametrize("options", OPTIONS)
def test_any_transformer_through_a_file(tmp_path, options):
    model, variables = build(**dict(h=3, d_k=5, d_v=7), **options)
    save(tmp_path / "model.safetensors", to_arrays(variables))
    arrays = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(
        arrays["decoder_1/cross_attention/w_q"],
        variables["params"]["decoder_1"]["cross_attention"]["w_q"],
    )
    assert_same(from_arrays(model, arrays), variables)


def test_other_models_as_arrays():
    tokens = jnp.zeros((1, 2), jnp.int32)
    language = LanguageModel(config.LanguageModel(**SIZES), 5, 3)
    rnn = RNN(config.RNN(d_model=6, N=1), 5, 3)
    for model, arguments in (
        (language, (tokens, Context())),
        (rnn, sentences(tokens, tokens)),
    ):
        variables = random_variables(model, *arguments)
        assert_same(from_arrays(model, to_arrays(variables)), variables)


def test_arrays_of_another_model_are_named():
    model, variables = build()
    arrays = to_arrays(variables)
    arrays["encoder_2/x"] = arrays.pop("encoder_0/self_attention/w_q")
    arrays["embedding"] = arrays["embedding"].T
    with pytest.raises(
        ValueError,
        match=r"of Transformer\(d_model=14.*missing: encoder_0/self_attention/w_q"
        r"; unknown: encoder_2/x; embedding has shape \(14, 29\), not \(29, 14\)$",
    ):
        from_arrays(model, arrays)


def test_every_kind_of_number_comes_back_however_it_lies_in_memory(tmp_path):
    kinds = [np.float64, np.float32, np.float16, jnp.bfloat16, np.int32, np.uint8, bool]
    arrays = {}
    for kind, shape in itertools.product(kinds, [(3, 5), (), (0, 2)]):
        numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
        arrays[f"{np.dtype(kind)} {shape}"] = numbers.T
    path = tmp_path / "all.safetensors"
    save(path, arrays)
    loaded = load(path)
    assert loaded.keys() == arrays.keys()
    for name, x in arrays.items():
        assert loaded[name].dtype == x.dtype
        np.testing.assert_array_equal(loaded[name], x)
    assert load(path, ["bool (3, 5)", "another"]).keys() == {"bool (3, 5)"}


@pytest.mark.parametrize("content", [b"PK", (5).to_bytes(8, "little") + b"hello"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.safetensors is no safetensors file"):
        load(path)


def test_the_extra_is_named_where_the_library_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (lambda: load("x"), lambda: save("x", {})):
        with pytest.raises(ImportError, match=r"pip install 'attn\[safetensors\]'"):
            call()
