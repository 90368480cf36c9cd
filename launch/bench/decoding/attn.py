"""Translates with attn.nn.beam_search."""

import jax
import jax.numpy as jnp
import numpy as np

from attn import NoPositions, Transformer, beam_search, config, greedy
from attn.nn.norms import Post
from experiments.data.vocabulary import BOS, EOS
from launch.bench.decoding import case as searches
from launch.bench.decoding.case import Case
from launch.bench.harness.libraries import Adapter, Program


def transformer(case: Case) -> Transformer:
    """Returns the model whose parameters are `weights(case)`."""
    d_head = case.d_model // case.h
    description = config.Transformer(
        N=case.N,
        d_model=case.d_model,
        d_ff=case.d_ff,
        h=case.h,
        d_k=d_head,
        d_v=d_head,
        # The tables come with the weights, so the model has no encoding of its own.
        positions=NoPositions(),
        norm=Post(epsilon=searches.LAYER_NORM_EPSILON),
    )
    return Transformer(description, case.vocabulary, case.tokens + 1)


def search(case: Case) -> Program:
    """Compiles the search of the case."""
    table = {"table": searches.positions(case)}
    positions = {"source_positions": table, "target_positions": table}
    numpy_variables = {"params": searches.weights(case), "positions": positions}
    variables = jax.tree.map(jnp.asarray, numpy_variables)
    source = jnp.asarray(searches.sources(case))
    lengths = jnp.full(case.batch, case.tokens)
    options = {"max_length": case.tokens, "bos": BOS, "eos": EOS}
    function = greedy
    if case.beam > 1:
        function = beam_search
        options |= {"beam": case.beam, "alpha": searches.ALPHA}

    def searched(variables, source, lengths):
        return function(transformer(case), variables, source, lengths, **options)

    # Now, so that no turn compiles.
    compiled = jax.jit(searched).lower(variables, source, lengths).compile()

    def run():
        result = jax.block_until_ready(compiled(variables, source, lengths))
        # The best hypothesis stands first.
        return result.tokens[:, 0] if case.beam > 1 else result

    return Program(run, lambda: {"tokens": np.asarray(run())})


ADAPTERS = {"attn": Adapter(search)}
