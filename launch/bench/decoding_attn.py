"""Translation with attn.decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn import Design, NoPositions, Shape, Transformer
from attn.decoding import beam_search, greedy
from experiments.tokens import BOS, EOS
from launch.bench import searches
from launch.bench.searches import Case
from launch.bench.timing import Adapter, Program


def transformer(case: Case) -> Transformer:
    d_k = case.d_model // case.h
    return Transformer(Shape(case.N, case.d_model, case.d_ff, case.h, d_k, d_k), case.vocabulary, case.pieces + 1,
                       NoPositions(), design=Design(norm_epsilon=searches.LAYER_NORM_EPSILON))


def search(case: Case) -> Program:
    table = {"table": searches.positions(case)}
    variables = jax.tree.map(jnp.asarray, {"params": searches.weights(case), "positions": {
        "source_positions": table, "target_positions": table}})
    source, lengths = jnp.asarray(searches.sources(case)), jnp.full(case.batch, case.pieces)
    told = dict(most=case.pieces, bos=BOS, eos=EOS)
    if case.beam > 1:
        told |= dict(beam=case.beam, alpha=searches.ALPHA)
    compiled = jax.jit(functools.partial(beam_search if case.beam > 1 else greedy, transformer(case), **told)).lower(
        variables, source, lengths).compile()

    def run():
        found = jax.block_until_ready(compiled(variables, source, lengths))
        return found.pieces[:, 0] if case.beam > 1 else found

    return Program(run, lambda: {"pieces": np.asarray(run())})


PEERS = {"attn": Adapter(search)}
