"""A program's functions for a population, compiled when first called and shared by all trials of a process."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax

from experiments import evaluation, trial
from experiments.evaluation import Search
from experiments.population import Lanes, distribute, each


class Compiled(NamedTuple):
    """`init` and `weights` are of one trial, the others of a population, see `experiments.population`."""

    init: Callable
    steps: Callable
    piece_losses: Callable
    greedy: Callable
    search: Callable
    weights: Callable


@functools.lru_cache(maxsize=8)
def compiled(program: trial.Program, lanes: Lanes, how: Search) -> Compiled:
    def fixed(function, *first):
        return functools.partial(function, program, *first)

    return Compiled(
        jax.jit(trial.initial_variables, static_argnums=0),
        distribute(fixed(trial.steps), lanes),
        each(fixed(trial.piece_losses), lanes),
        greedy := each(fixed(evaluation.search, how._replace(beam=1), ()), lanes),
        greedy if how.beam == 1 else each(fixed(evaluation.search, how, ()), lanes),
        jax.jit(fixed(evaluation.attention_weights)),
    )
