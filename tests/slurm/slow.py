"""A score that takes its time, so that a trial outlasts a limit on every machine."""

import os
import time

import jax
import numpy as np

import attn


@attn.score
class Slow:
    """q·k; each training step waits as many seconds as SLOW_SCORE says, and no CPU works.

    Evaluation does not wait: it has no gradient, and has to end within one task.
    """

    is_product = True

    def prepare(self, q, k):
        return attn.Dot(), _slow_in_training(q), k

    def __call__(self, q, k):
        dot, q, k = self.prepare(q, k)
        return dot(q, k)


@jax.custom_jvp
def _slow_in_training(q):
    return q


@_slow_in_training.defjvp
def _wait_and_differentiate(primals, tangents):
    (q,) = primals
    nothing = jax.pure_callback(
        _wait,
        jax.ShapeDtypeStruct((), q.dtype),
        jax.lax.stop_gradient(q[0, 0]),
        vmap_method="broadcast_all",
    )
    return q + nothing, tangents[0]


def _wait(x):
    time.sleep(float(os.environ.get("SLOW_SCORE", "0")))
    return np.zeros_like(x)
