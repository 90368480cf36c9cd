"""Builds the training step in JAX: attn's own, and a plain one in flax.linen."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from attn.positions import Sinusoidal
from experiments.data.batches import Batches, Encoded, corpus
from experiments.settings import CldrData, Settings, Training, TransformerModel
from experiments.settings.schema import Rates
from experiments.system import machine
from experiments.trial.lanes import Lanes, distribute
from experiments.trial.program import (
    hyper_of,
    initial_state,
    program_of,
)
from experiments.trial.step import train_steps
from launch.bench.harness.libraries import Adapter, Program
from launch.bench.training import case as steps
from launch.bench.training.case import Case


def settings(case: Case, everywhere: bool = False) -> Settings:
    """Returns attn's settings for the case.

    With `everywhere`, dropout is in torch.nn.Transformer's places too.
    """
    d_head = case.d_model // case.h
    P_inside = case.P_drop if everywhere else 0.0
    return Settings(
        model=TransformerModel(
            N=case.N,
            d_model=case.d_model,
            d_ff=case.d_ff,
            h=case.h,
            d_k=d_head,
            d_v=d_head,
        ),
        rates=Rates(case.P_drop, P_inside, P_inside),
        data=CldrData(max_length=case.tokens),
        training=Training(
            batch_size=case.pairs,
            sequence_length=case.tokens,
            schedule="paper(warmup=1)",
            eps_ls=steps.EPS_LS,
            # With one step of warm-up, the rate is this over √d_model at step 1.
            learning_rate=case.rate * case.d_model**0.5,
            precision=case.precision,
        ),
    )


def attn_step(case: Case, everywhere: bool = False) -> Program:
    """Builds launch.train's step on packed rows, here of one sentence each."""
    machine.use_compile_cache()
    own = settings(case, everywhere)
    source, target = steps.sentences(case)
    flat = corpus(Encoded(list(source), list(target)))
    lanes = Lanes(case.lanes)
    batches = Batches(flat, batch_size=case.pairs, sequence_length=case.tokens, seed=0)
    # One batch for all steps: the benchmark is of the step, not of the data.
    slots = np.repeat(batches.take(1)[None], case.lanes, axis=0)
    program = program_of(own, case.vocabulary, case.tokens)
    states = lanes.stack([jax.device_get(initial_state(program, own))] * case.lanes)
    hypers = lanes.stack([jax.device_get(hyper_of(own))] * case.lanes)
    shared = lanes.share(flat)
    step = distribute(functools.partial(train_steps, program), lanes)

    def run():
        nonlocal states
        states, metrics = step(states, hypers, shared, slots, 1)
        # As a number, for which JAX has to wait until the step is done.
        return float(metrics["loss"].ravel()[0])

    return steps.program(run)


class Layer(nn.Module):
    """A layer of the encoder, or with `memory` of the decoder."""

    case: Case
    P_inside: float

    @nn.compact
    def __call__(self, x, memory=None, mask=None):
        x = self._after(x, self._attention(x, x, mask))
        if memory is not None:
            x = self._after(x, self._attention(x, memory))
        hidden = self._drop(self.P_inside, nn.relu(nn.Dense(self.case.d_ff)(x)))
        return self._after(x, nn.Dense(self.case.d_model)(hidden))

    def _attention(self, x, memory, mask=None):
        attention = nn.MultiHeadDotProductAttention(
            self.case.h,
            # Section 3.2.2: the paper's projections have no biases.
            use_bias=False,
            dropout_rate=self.P_inside,
            deterministic=False,
        )
        return attention(x, memory, mask=mask)

    def _after(self, x, y):
        return nn.LayerNorm()(x + self._drop(self.case.P_drop, y))

    def _drop(self, rate, x):
        return nn.Dropout(rate, deterministic=False)(x)


class Linen(nn.Module):
    """Computes the logits of every target token.

    `P_inside` is the dropout of attention weights and hidden units.
    """

    case: Case
    P_inside: float

    @nn.compact
    def __call__(self, source, target):
        embed = nn.Embed(
            self.case.vocabulary,
            self.case.d_model,
            # It is the output's matrix too, so logits are of order 1 at first.
            embedding_init=nn.initializers.normal(self.case.d_model**-0.5),
        )
        x = self._embedded(embed, source)
        y = self._embedded(embed, target)
        for _ in range(self.case.N):
            x = Layer(self.case, self.P_inside)(x)
        for _ in range(self.case.N):
            mask = nn.make_causal_mask(target)
            y = Layer(self.case, self.P_inside)(y, x, mask)
        return embed.attend(y)

    def _embedded(self, embed, ids):
        key = jax.random.key(0)
        table = Sinusoidal().table(key, self.case.tokens, self.case.d_model)
        x = embed(ids) * self.case.d_model**0.5 + table[None].astype(
            embed.embedding.dtype
        )
        return nn.Dropout(self.case.P_drop, deterministic=False)(x)


def flax_step(case: Case, everywhere: bool = False) -> Program:
    """Builds a step as flax's users write it, with optax.adam."""
    steps.check_lanes(case)
    machine.use_compile_cache()
    batch = tuple(map(jnp.asarray, steps.padded(case)))
    model = Linen(case, case.P_drop * everywhere)
    adam = optax.adam(case.rate, *steps.BETAS, steps.EPSILON)
    key = jax.random.key(0)
    keys = {"params": key, "dropout": key}
    # Compiled: otherwise each operation of the initialisation is compiled by itself.
    params = jax.jit(model.init)(keys, *batch[:2])["params"]
    state = (params, jax.jit(adam.init)(params))

    # Donated, as users do: else the old and the new state are in memory at once.
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, key, source, target_in, target_out):
        params, moments = state

        def mean_loss(params):
            # Sums of gradients are of float32 parameters, products of the precision's.
            cast = jax.tree.map(lambda x: x.astype(case.precision), params)
            variables = {"params": cast}
            rngs = {"dropout": key}
            logits = model.apply(variables, source, target_in, rngs=rngs)
            logits = logits.astype(jnp.float32)
            labels = jax.nn.one_hot(target_out, case.vocabulary)
            smooth = optax.smooth_labels(labels, steps.EPS_LS)
            return optax.softmax_cross_entropy(logits, smooth).mean()

        loss, gradients = jax.value_and_grad(mean_loss)(params)
        updates, moments = adam.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), loss

    # A fresh key for each step, as flax's users split it: that is part of the time.
    def run():
        nonlocal state, key
        key, step_key = jax.random.split(key)
        state, loss = step(state, step_key, *batch)
        return float(loss)

    return steps.program(run)


ADAPTERS = {
    "attn": Adapter(attn_step),
    "attn:as-torch": Adapter(functools.partial(attn_step, everywhere=True)),
    "flax": Adapter(flax_step),
    "flax:as-torch": Adapter(functools.partial(flax_step, everywhere=True)),
}
