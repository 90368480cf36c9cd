"""The training step in JAX: attn's own, and a straightforward one in flax.linen and optax."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from attn.positions import Sinusoidal
from experiments import machine, population, trial
from experiments.batches import Batches, corpus
from experiments.settings import Data, Model, Settings, Training
from launch.bench import steps
from launch.bench.steps import Case
from launch.bench.timing import Adapter, Program


def attn_step(case: Case, everywhere: bool = False) -> Program:
    """launch.train's step on packed rows. `everywhere`: dropout in torch.nn.Transformer's places too."""
    machine.use_compile_cache()
    d, more = case.d_model // case.h, case.P_drop * everywhere
    settings = Settings(
        Model(case.N, case.d_model, case.d_ff, case.h, d, d, P_drop=case.P_drop, P_attention=more, P_ff=more),
        data=Data(max_pieces=case.pieces),
        training=Training(rows=case.pairs, row_pieces=case.pieces, warmup=1, eps_ls=steps.EPS_LS,
                          learning_rate=case.rate * case.d_model**0.5))
    flat, lanes = corpus(steps.sentences(case)), population.Lanes()
    slots = Batches(flat, rows=case.pairs, row_pieces=case.pieces, seed=0).take(1)[None]
    program = trial.program(settings, case.vocabulary, case.pieces)
    state = trial.initial_state(program, settings, jax.jit(trial.initial_variables, static_argnums=0))
    states, hypers = (lanes.stack([jax.device_get(own)]) for own in (state, trial.hyper(settings)))
    shared, step = lanes.share(flat), population.distribute(functools.partial(trial.steps, program))

    def run():
        nonlocal states
        states, metrics = step(states, hypers, shared, slots, 1)
        return float(metrics["loss"][0, 0, 0])

    return steps.program(run)


class Layer(nn.Module):
    """Of the encoder, or with `memory` of the decoder."""

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
        attention = nn.MultiHeadDotProductAttention(self.case.h, use_bias=False, dropout_rate=self.P_inside,
                                                    deterministic=False)
        return attention(x, memory, mask=mask)

    def _after(self, x, y):
        return nn.LayerNorm()(x + self._drop(self.case.P_drop, y))

    def _drop(self, rate, x):
        return nn.Dropout(rate, deterministic=False)(x)


class Linen(nn.Module):
    """Logits of every target piece. `P_inside`: of attention weights and hidden units."""

    case: Case
    P_inside: float

    @nn.compact
    def __call__(self, source, target):
        embed = nn.Embed(self.case.vocabulary, self.case.d_model,
                         embedding_init=nn.initializers.normal(self.case.d_model**-0.5))
        x, y = self._embedded(embed, source), self._embedded(embed, target)
        for _ in range(self.case.N):
            x = Layer(self.case, self.P_inside)(x)
        for _ in range(self.case.N):
            y = Layer(self.case, self.P_inside)(y, x, nn.make_causal_mask(target))
        return embed.attend(y)

    def _embedded(self, embed, ids):
        table = Sinusoidal().init(None, self.case.pieces, self.case.d_model)
        x = embed(ids) * self.case.d_model**0.5 + table[None]
        return nn.Dropout(self.case.P_drop, deterministic=False)(x)


def flax_step(case: Case, everywhere: bool = False) -> Program:
    machine.use_compile_cache()
    batch = tuple(map(jnp.asarray, steps.padded(case)))
    model, adam = Linen(case, case.P_drop * everywhere), optax.adam(case.rate, *steps.BETAS, steps.EPSILON)
    key = jax.random.key(0)
    params = jax.jit(model.init)({"params": key, "dropout": key}, *batch[:2])["params"]
    state = params, jax.jit(adam.init)(params)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, key, source, target_in, target_out):
        params, moments = state

        def loss(params):
            logits = model.apply({"params": params}, source, target_in, rngs={"dropout": key})
            labels = optax.smooth_labels(jax.nn.one_hot(target_out, case.vocabulary), steps.EPS_LS)
            return optax.softmax_cross_entropy(logits, labels).mean()

        found, gradients = jax.value_and_grad(loss)(params)
        updates, moments = adam.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), found

    def run():
        nonlocal state, key
        key, own = jax.random.split(key)
        state, loss = step(state, own, *batch)
        return float(loss)

    return steps.program(run)


PEERS = {"attn": Adapter(attn_step), "attn:as-torch": Adapter(functools.partial(attn_step, everywhere=True)),
         "flax": Adapter(flax_step), "flax:as-torch": Adapter(functools.partial(flax_step, everywhere=True))}
