"""Measures a layer: its time, its memory, its sequential operations, and its path.

For sequential operations the compiled program is read: the trips of its longest loop,
and 1 where there is none. That holds at lengths at which attention is computed at once
(beyond, it walks blocks, which do not wait for each other). A path is measured through
gradients: which positions the output of one application depends on at all, and how
often it has to be applied until all are reached.
"""

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np

from attn import Recurrence
from launch.bench.table1.kinds import Kind

PAUSE = 0.02
"""Seconds before each call, in which threads come to rest."""
NARROW = 8
"""d where sequential operations are counted."""
TRIPS = re.compile(r'known_trip_count["\s:={]+n["\s:]+(\d+)')


def timed(kind: Kind, sizes, turns: int):
    """Times forward passes, the sizes taking turns.

    Returns ({(n, d): seconds of each turn}, {(n, d): temporary bytes}).
    """
    programs = {size: compiled(kind, *size) for size in sizes}
    seconds = {size: [] for size in sizes}
    for turn in range(turns + 1):
        for size, (call, arguments) in programs.items():
            time.sleep(PAUSE)
            begin = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            # The first turn warms.
            if turn:
                seconds[size].append(time.perf_counter() - begin)
    # The compiler's account, as a process keeps what an earlier size took.
    memory = {}
    for size, (call, _) in programs.items():
        memory[size] = call.memory_analysis().temp_size_in_bytes
    return seconds, memory


def compiled(kind: Kind, n: int, d: int):
    """Returns (the compiled layer, the arguments to call it with)."""
    module = kind.build(d)
    x = jax.random.normal(jax.random.key(0), (kind.batch, n, d))
    initialise = jax.jit(functools.partial(_call, module.init, kind))
    variables = initialise(jax.random.key(1), x)
    apply = jax.jit(functools.partial(_call, module.apply, kind))
    return apply.lower(variables, x).compile(), (variables, x)


def _call(function, kind, first, x):
    if kind.attends:
        return function(first, x, x, kind.mask)
    return function(first, x, kind.mask)


def sequential(kind: Kind, n: int) -> int:
    """Returns the trips of the longest loop in the compiled layer, 1 without a loop."""
    program, _ = compiled(kind, n, NARROW)
    return max([1, *map(int, TRIPS.findall(program.as_text()))])


def path(kind: Kind, n: int) -> int:
    """Returns how often the layer is applied until every output depends on every input.

    For a recurrence that is every input before, and one application is one step of its
    cell, at all positions at once.
    """
    # Which positions depend on which is the same at any width.
    x = jax.random.normal(jax.random.key(0), (n, 4))
    module = kind.build(4)
    variables = _call(module.init, kind, jax.random.key(1), x)
    # All steps of a recurrence are one application of its module, so the cell counts.
    if isinstance(module, Recurrence):
        hop, reached = _recurrent_hops(module, variables, x)
        needed = np.tri(n, dtype=bool)
    else:
        hop = _depends(functools.partial(_call, module.apply, kind, variables), x)
        reached = hop
        needed = np.ones((n, n), bool)
    times = 1
    while not reached[needed].all():
        reached = reached | (hop @ reached)
        times += 1
        # Each application reaches one position more at least, or never all.
        if times > n:
            message = f"{n} applications do not reach every position"
            raise AssertionError(f"{kind.name}: {message}")
    return times


def _recurrent_hops(module, variables, x):
    """Returns on which states, and on which inputs, the states after a step depend."""

    def one_step(bound, *arguments):
        return bound.forward.one(*arguments)[1]

    def step(states, x):
        before = jnp.roll(states, 1, axis=0).at[0].set(0)
        return module.apply(variables, before, x, method=one_step)

    hop = _depends(lambda states: step(states, x), x)
    return hop, _depends(lambda x: step(jnp.ones_like(x), x), x)


def _depends(function, x):
    """Returns (n, n): whether row i of the result depends on row j of x."""
    jacobian = np.asarray(jax.jacobian(function)(x))
    return np.abs(jacobian).sum((1, 3)) > 0
