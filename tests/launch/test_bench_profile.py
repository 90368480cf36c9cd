"""Which kernels took a program's time."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from launch.bench.harness import profile


def test_a_cpus_operations_are_counted_a_call():
    @jax.jit
    def program(x):
        return jnp.sort(x @ x, axis=0)

    x = jnp.ones((64, 64))
    program(x).block_until_ready()
    kernels = profile.by_kernel(lambda: program(x).block_until_ready(), 3)
    times = {kernel.name: kernel.count for kernel in kernels}
    assert [count for name, count in times.items() if "sort" in name] == [1]
    seconds = [kernel.seconds for kernel in kernels]
    assert all(x > 0 for x in seconds) and seconds == sorted(seconds, reverse=True)


def event(name, nanoseconds, **stats):
    return SimpleNamespace(name=name, duration_ns=nanoseconds, stats=stats.items())


def plane(name, **lines):
    of_plane = [SimpleNamespace(name=k, events=events) for k, events in lines.items()]
    return SimpleNamespace(name=name, lines=of_plane)


def test_of_a_gpu_its_streams_count_and_nothing_else():
    planes = [
        plane("/host:CPU", python=[event("dispatch", 9, hlo_op="dot.1")]),
        plane(
            "/device:GPU:0",
            Stream_1=[event("gemm", 5, hlo_op="dot.1"), event("cudnn_fwd", 7)],
            Steps=[event("step", 12, hlo_op="dot.1")],
        ),
    ]
    assert [*profile._events(planes)] == [("dot.1", 5), ("cudnn_fwd", 7)]
    assert [*profile._events(planes[:1])] == [("dot.1", 9)]


def test_a_table_has_the_whole_and_the_largest():
    kernels = [profile.Kernel(f"k{i}", 1e-3, 2) for i in range(100)]
    table = profile.table("it", kernels)
    assert table.rows[0] == ("all", "100", "100.0%", "200")
    assert table.rows[1] == ("k0", "1.0", "1.0%", "2.0")
    assert len(table.rows) == 1 + profile.SHOWN
    assert profile.table("it", []).rows == [("all", "0", "", "0")]
