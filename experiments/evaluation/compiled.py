"""A program's functions for a population, compiled when first called and shared by all trials of a process."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax

from experiments.evaluation.attention_maps import attention_weights
from experiments.evaluation.decode import Search, search_batch
from experiments.trial.lanes import Lanes, distribute, over_lanes
from experiments.trial.program import Program, initial_variables
from experiments.trial.step import token_losses, train_steps


class Compiled(NamedTuple):
    """`init` and `weights` are of one trial, the others of a population, see `experiments.population`."""

    init: Callable
    steps: Callable
    piece_losses: Callable
    greedy: Callable
    search: Callable
    weights: Callable


@functools.lru_cache(maxsize=8)
def compiled(program: Program, lanes: Lanes, how: Search) -> Compiled:
    def fixed(function, *first):
        return functools.partial(function, program, *first)

    return Compiled(
        jax.jit(initial_variables, static_argnums=0),
        distribute(fixed(train_steps), lanes),
        over_lanes(fixed(token_losses), lanes),
        greedy := over_lanes(fixed(search_batch, how._replace(beam=1), ()), lanes),
        greedy if how.beam == 1 else over_lanes(fixed(search_batch, how, ()), lanes),
        jax.jit(fixed(attention_weights)),
    )
