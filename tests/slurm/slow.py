"""A score that takes its time, so that a trial outlasts a limit on every machine."""

import os
import time

import jax
import numpy as np

import attn


@attn.score
class Slow:
    """q·k, after as many seconds as SLOW_SCORE says, in which no CPU works."""

    is_product = True

    def prepare(self, q, k):
        nothing = jax.pure_callback(
            _wait,
            jax.ShapeDtypeStruct((), q.dtype),
            jax.lax.stop_gradient(q[0, 0]),
            vmap_method="broadcast_all",
        )
        return attn.Dot(), q + nothing, k

    def __call__(self, q, k):
        dot, q, k = self.prepare(q, k)
        return dot(q, k)


def _wait(x):
    time.sleep(float(os.environ.get("SLOW_SCORE", "0")))
    return np.zeros_like(x)
