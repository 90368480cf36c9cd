"""What is done with an `attend` written in JAX: timed programs, and values and derivatives for the probes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from launch.bench import cases
from launch.bench.peers import Call
from launch.bench.timing import Program
from launch.bench.workers import check_room


@dataclasses.dataclass(eq=False)
class Jax:
    """An adapter, see `peers`. Arrays come in and go out as numpy's, whatever the precision between."""

    attend: Callable
    by_hand: dict[str, Callable] = dataclasses.field(default_factory=dict)
    """For the timing: what a user writes for a score that the library lacks."""
    silent: dict[str, Callable[[], bool]] = dataclasses.field(default_factory=dict)
    """Uses of the library that may ignore an argument: whether it has an effect, or is refused by an exception."""
    program: Any = None

    def compile(self, case: cases.Case) -> Program:
        jax.clear_caches()
        attend = self.by_hand.get(case.score, self.attend)
        x, g = cases.inputs(case)
        kept = jnp.asarray(cases.checked(case, g))
        x, g = jax.tree.map(jnp.asarray, (x, g))

        def output(x, g):
            return {"out": attend(x, case.call)[0]}

        def gradient(x, g):
            return jax.value_and_grad(lambda x: (attend(x, case.call)[0] * g).sum())(x)

        compiled = jax.jit(output if case.direction == "forward" else gradient).lower(x, g).compile()
        memory = compiled.memory_analysis()
        check_room(memory.temp_size_in_bytes + memory.output_size_in_bytes)

        def sample():
            found = compiled(x, kept)
            return cases.sample(case, jax.tree.map(np.asarray, found if case.direction == "forward" else found[1]))

        return Program(lambda: jax.block_until_ready(compiled(x, g)), sample, memory.output_size_in_bytes,
                       memory.temp_size_in_bytes, case.score in self.by_hand)

    def value(self, x, call: Call, dtype="float32"):
        """(output, LSE or None) and the names of their dtypes."""
        out, lse = self._run(_value, call, dtype, x)
        return _numpy(out), _numpy(lse), tuple(None if a is None else a.dtype.name for a in (out, lse))

    def gradient(self, x, call: Call, g=None, h=None, dtype="float32"):
        """Of Σ g · output + Σ h · LSE, by reverse mode."""
        return _numpy(self._run(_gradient, call, dtype, x, g, h))

    def forward(self, x, dx, call: Call, dtype="float32"):
        """The output's derivative along dx, by forward mode."""
        return _numpy(self._run(_forward, call, dtype, x, dx))

    def second(self, x, dx, call: Call, g, dtype="float32"):
        """The derivative along dx of the gradient, by reverse mode over reverse mode."""
        return _numpy(self._run(_second, call, dtype, x, dx, g))

    def mapped(self, xs, call: Call, g, dtype="float32"):
        """`gradient` under vmap, over a leading axis of all arrays of xs."""
        return _numpy(self._run(_mapped, call, dtype, xs, g))

    def memory(self, x, call: Call) -> int:
        """Bytes of temporaries of the compiled gradient."""
        compiled = _jitted(_gradient, self.attend, call).lower(jax.tree.map(jnp.float32, x), jnp.float32(1)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def _run(self, function, call, dtype, *trees):
        with jax.enable_x64(dtype == "float64"):
            cast = jax.tree.map(lambda a: jnp.asarray(a, dtype), trees)
            return _jitted(function, self.attend, call)(*cast)


@functools.lru_cache(maxsize=64)
def _jitted(function, attend, call):
    return jax.jit(functools.partial(function, attend, call))


def _value(attend, call, x):
    return attend(x, call)


def _loss(attend, call, x, g, h=None):
    out, lse = attend(x, call)
    total = 0.0 if g is None else (out * g).sum()
    return total if h is None else total + (lse * h).sum()


def _gradient(attend, call, x, g, h=None):
    return jax.grad(lambda x: _loss(attend, call, x, g, h))(x)


def _forward(attend, call, x, dx):
    return jax.jvp(lambda x: attend(x, call)[0], (x,), (dx,))[1]


def _second(attend, call, x, dx, g):
    def along(x):
        return sum(jnp.vdot(a, dx[name]) for name, a in _gradient(attend, call, x, g).items())

    return jax.grad(along)(x)


def _mapped(attend, call, xs, g):
    return jax.vmap(lambda x: _gradient(attend, call, x, g))(xs)


def _numpy(tree):
    """In float64, which holds every number of the other precisions."""
    return jax.tree.map(lambda a: np.asarray(a).astype(np.float64), tree)
