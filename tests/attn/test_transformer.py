"""The Transformer against the float64 oracle, the paper's arithmetic, and its own cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Learned, Mask, NoPositions, Shape, Sinusoidal, Transformer, greedy, sinusoidal
from tests.attn import oracle

SHAPE = Shape(N=2, d_model=10, d_ff=17, h=3, d_k=5, d_v=7)
VOCABULARY, LENGTH = 29, 23


def places(ids):
    return jnp.broadcast_to(jnp.arange(ids.shape[-1]), ids.shape)


def masks(lengths=None):
    seen = Mask() if lengths is None else Mask.padding(lengths)
    return dict(source_mask=seen, target_mask=Mask.causal(), cross_mask=seen)


def build(encoding=Sinusoidal(), shape=SHAPE, P_drop=0.1):
    model = Transformer(shape, VOCABULARY, LENGTH, encoding, P_drop)
    ids = jnp.zeros((1, 2), jnp.int32)
    return model, model.init(jax.random.key(0), ids, ids, ids, ids, **masks())


@pytest.fixture(scope="module")
def pair():
    draw = np.random.default_rng(0).integers
    return draw(4, VOCABULARY, 11), draw(4, VOCABULARY, 7)


@pytest.mark.parametrize("encoding", [Sinusoidal(), Learned(), NoPositions()])
def test_logits_equal_the_oracle(pair, encoding):
    model, variables = build(encoding)
    source, target = (jnp.asarray(x) for x in pair)
    hidden = model.apply(variables, source, target, places(source), places(target), **masks())
    logits = model.apply(variables, hidden, method=Transformer.logits)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
    wanted = oracle.transformer(exact["params"], SHAPE.N, *pair, exact["positions"])
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-5)


def test_padding_and_batch_change_nothing(pair):
    model, variables = build()
    source, target = (jnp.asarray(x) for x in pair)
    alone = model.apply(variables, source, target, places(source), places(target), **masks())
    padded = jnp.stack([jnp.pad(source, (0, 3), constant_values=9), jnp.arange(14)])
    targets = jnp.stack([target, target])
    batch = model.apply(variables, padded, targets, places(padded), places(targets), **masks(jnp.array([11, 14])))
    np.testing.assert_allclose(batch[0], alone, rtol=1e-4, atol=1e-5)


def test_no_piece_sees_the_future(pair):
    model, variables = build()
    source, target = (jnp.asarray(x) for x in pair)

    def hidden(table):
        changed = {**variables, "positions": {**variables["positions"], "target_positions": {"table": table}}}
        return model.apply(changed, source, target, places(source), places(target), **masks())

    # One table row feeds one target place, so its gradient is that place's reach. Weighted, because the plain sum of
    # what a LayerNorm gives is constant.
    weights = jnp.arange(SHAPE.d_model, dtype=jnp.float32)
    reach = jax.jacobian(lambda t: hidden(t) @ weights)(variables["positions"]["target_positions"]["table"])
    seen = np.abs(np.asarray(reach)).sum(-1)[:, : len(target)] > 0
    np.testing.assert_array_equal(seen, np.tri(len(target)) > 0)


@pytest.mark.parametrize(("row", "shape", "millions"), [
    ("base", Shape(6, 512, 2048, 8, 64, 64), 44.10),
    ("(A) h=1", Shape(6, 512, 2048, 1, 512, 512), 44.10),
    ("(B) d_k=16", Shape(6, 512, 2048, 8, 16, 64), 37.02),
    ("(C) N=2", Shape(2, 512, 2048, 8, 64, 64), 14.70),
    ("(C) d_model=256", Shape(6, 256, 2048, 8, 32, 32), 17.34),
    ("(C) d_ff=4096", Shape(6, 512, 4096, 8, 64, 64), 69.29),
    ("big", Shape(6, 1024, 4096, 16, 64, 64), 176.28),
])
def test_parameters_of_table_3(row, shape, millions):
    model = Transformer(shape, VOCABULARY, LENGTH)
    ids = jnp.zeros((1, 2), jnp.int32)
    params = jax.eval_shape(lambda key: model.init(key, ids, ids, ids, ids, **masks()), jax.random.key(0))["params"]
    core = sum(x.size for x in jax.tree.leaves(params)) - VOCABULARY * shape.d_model
    N, d, f, h, d_k, d_v = shape
    assert core == N * (6 * d * h * (d_k + d_v) + 4 * d * f + 2 * f + 12 * d)
    assert round(core / 1e6, 2) == millions


def test_sinusoids():
    table = sinusoidal(50, 8)
    np.testing.assert_allclose(table[7, 4], np.sin(7 / 10_000 ** (4 / 8)), rtol=1e-6)
    np.testing.assert_allclose(table[7, 5], np.cos(7 / 10_000 ** (4 / 8)), rtol=1e-6)
    # PE(pos + k) is PE(pos) turned by an angle that depends on k alone (the paper's section 3.5).
    turn = 3 * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    sin, cos = table[:-3, ::2], table[:-3, 1::2]
    np.testing.assert_allclose(table[3:, ::2], sin * np.cos(turn) + cos * np.sin(turn), atol=2e-6)
    with pytest.raises(ValueError, match="d_model=7 must be even"):
        sinusoidal(50, 7)


def test_greedy_equals_the_search_without_a_cache():
    model, variables = build(Learned())
    source = jnp.asarray(np.random.default_rng(2).integers(4, VOCABULARY, (5, 11)), jnp.int32)
    lengths, most = jnp.array([11, 9, 3, 1, 6]), 13
    found = greedy(model, variables, source, lengths, most=most, bos=1, eos=2)

    @jax.jit
    def best(target):  # after every piece of the target, each seeing only what stands before it
        hidden = model.apply(variables, source, target, places(source), places(target), **masks(lengths))
        return model.apply(variables, hidden, method=Transformer.logits).argmax(-1)

    target = jnp.ones((5, most + 1), jnp.int32)
    for t in range(most):
        target = target.at[:, t + 1].set(best(target)[:, t])
    ended = jnp.cumsum(target[:, 1:] == 2, axis=1) - (target[:, 1:] == 2) > 0
    np.testing.assert_array_equal(found, jnp.where(ended, 0, target[:, 1:]))


def test_dropout_happens_with_an_rng_only(pair):
    model, variables = build(P_drop=0.5)
    source, target = (jnp.asarray(x) for x in pair)

    def hidden(**rngs):
        return model.apply(variables, source, target, places(source), places(target), **masks(), rngs=rngs)

    assert (hidden() == hidden()).all()
    assert not jnp.allclose(hidden(dropout=jax.random.key(0)), hidden(dropout=jax.random.key(1)))


def test_weights_are_kept_when_asked(pair):
    model, variables = build()
    source, target = (jnp.asarray(x) for x in pair)
    args = (variables, source, target, places(source), places(target))
    plain = model.apply(*args, **masks())
    hidden, kept = model.apply(*args, **masks(), mutable=["weights"])
    np.testing.assert_allclose(hidden, plain, rtol=1e-5, atol=1e-6)
    cross = kept["weights"]["decoder_1"]["cross_attention"]["weights"]
    assert cross.shape == (SHAPE.h, 7, 11)
    np.testing.assert_allclose(cross.sum(-1), 1, rtol=1e-5)
