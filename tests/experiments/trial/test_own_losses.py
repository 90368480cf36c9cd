"""What layers add to the loss of training: for real tokens alone, however layers are compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import keys_of_rows
from experiments.data.batches import Batches, assemble
from experiments.trial.program import hyper_of, initial_state, program_of
from experiments.trial.step import hidden_states, own_losses, summed_gradients
from tests.experiments import tiny

LENGTH = 48


def setting(N=2, **changes):
    heads = "indexed(k=3,indexers=2,width=4)"
    same = dict(model__heads=heads, model__N=N, model__P_drop=0.0)
    return tiny.resolve(**same | changes)


def batch_of(settings):
    """A batch of packed rows, with padding after them."""
    flat = tiny.corpus().train
    slots = Batches(flat, batch_size=3, sequence_length=LENGTH, seed=0).take(1)[0]
    return jax.tree.map(jnp.asarray, assemble(flat, slots, LENGTH, np))


@jax.jit
def squares(gradients):
    return jax.tree.map(lambda x: (x**2).sum(), gradients)


def gradients(settings):
    program = program_of(settings, settings.data.vocabulary_size, LENGTH)
    state = initial_state(program, settings)
    batch = batch_of(settings)
    keys = keys_of_rows(jax.random.key(0), jnp.arange(3))
    compute = jax.jit(summed_gradients, static_argnums=0)
    return compute(program, state, hyper_of(settings), batch, keys)


def apart(tree):
    """(the indexers' part of a tree, the rest), by path."""
    own, rest = {}, {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        (own if "together" in name else rest)[name] = leaf
    return own, rest


@pytest.mark.ci
def test_it_is_of_real_tokens_in_every_layer_and_trains_the_indexers_alone():
    settings = setting(N=1)
    found, loss, nll = gradients(settings)
    program = program_of(settings, settings.data.vocabulary_size, LENGTH)
    state = initial_state(program, settings)
    batch = batch_of(settings)

    def total(params):
        variables = {**state.variables, "params": params}
        _, kept = hidden_states(program, variables, batch, step=0)
        sums = 0.0
        for layer, of_layer in kept["losses"].items():
            ((each,),) = (x["heads"] for x in of_layer.values())
            is_source = layer == "encoder_0"
            segments = batch.source_segments if is_source else batch.target_segments
            assert each.shape == segments.shape and (segments == 0).any()
            sums += (each * (segments > 0)).sum()
        return sums, len(kept["losses"])

    (_, count), expected = jax.value_and_grad(total, has_aux=True)(state.params)
    assert count == 2
    (own, _), (expected, none) = apart(found["params"]), apart(expected)
    assert len(own) == 2 * 3
    for name, gradient in own.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-5)
    assert not any(np.any(x) for x in none.values())
    # Smoothing apart, what is logged has no part of it.
    assert np.isfinite(loss) and np.isfinite(nll)
    plain = gradients(setting(N=1, model__heads="separate"))
    assert loss != plain[1]


@pytest.mark.ci
@pytest.mark.parametrize("changes", [dict(scan=True), dict(scan=True, remat=True)])
def test_a_scan_over_layers_has_the_same(changes):
    options = {f"training__{name}": value for name, value in changes.items()}
    first, second = gradients(setting()), gradients(setting(**options))
    for one, other in zip(*map(jax.tree.leaves, (first, second)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_what_has_no_loss_adds_none():
    batch = batch_of(setting())
    assert own_losses({}, batch) == 0
    ones = {
        "encoder_0": {"self_attention": {"heads": (jnp.ones((3, LENGTH)),)}},
        "decoder_0": (2 * jnp.ones((3, LENGTH)),),
    }
    expected = (batch.source_segments > 0).sum() + 2 * (batch.target_segments > 0).sum()
    assert own_losses({"losses": ones}, batch) == expected
