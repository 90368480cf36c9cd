"""Where the cache of this machine is, and how much memory was in use."""

import os
import platform
import pwd
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.system import machine


def test_the_cache_is_where_the_variables_say(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert machine.cache() == Path("/somewhere/attn")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert machine.cache() == Path("/home/me/.cache/attn")


def test_a_user_without_a_home_is_asked_for_the_variable(monkeypatch):
    """As in a container that runs as a number which its passwd does not know."""

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(machine.CacheError, match="set XDG_CACHE_HOME") as refused:
        machine.cache()
    assert str(refused.value).startswith(f"user {os.getuid()} has no home directory")


def test_peak_memory_begins_anew():
    before = machine.peak_memory()
    # A process as small as this one needs memory, and no machine has a pebibyte.
    assert 2**22 < before < 2**50
    held = np.ones(2**26 // 8)
    assert machine.peak_memory() >= before
    with_array = machine.peak_memory()
    del held
    machine.reset_peak_memory()
    if sys.platform == "linux":
        assert machine.peak_memory() < with_array


MILAN = "model\t\t: 1\nmodel name\t: AMD EPYC\nflags\t\t: fpu fma avx2\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (2 * MILAN, "AMD EPYC, AVX2"),
        (MILAN.replace("fma", "avx512f"), "AMD EPYC, AVX-512"),
        (MILAN.replace("fma", "avx512f amx_tile"), "AMD EPYC, AMX"),
        ("Features\t: fp asimd\n", platform.machine()),
    ],
)
def test_cpus_of_one_name_are_told_apart(text, name, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    assert machine.device() == f"cpu ({name})"


def test_cpus_that_can_do_different_things_share_no_compiled_programs(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    folders = set()
    monkeypatch.setattr(
        jax.config, "update", lambda name, value: folders.add(str(value))
    )
    for flags in ("fma", "fma", "avx_vnni"):
        text = MILAN.replace("fma", flags)
        monkeypatch.setattr(Path, "read_text", lambda path, text=text: text)
        machine.use_compile_cache()
    assert len([folder for folder in folders if "cpu-AMD-EPYC-AVX2-" in folder]) == 2


def test_threads_are_as_many_as_nproc_says(monkeypatch):
    monkeypatch.setenv("NPROC", "3")
    assert machine.threads() == 3
    for nothing in ("", "many"):
        monkeypatch.setenv("NPROC", nothing)
        assert machine.threads() == machine.cores()
