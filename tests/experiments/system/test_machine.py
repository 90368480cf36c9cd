"""Where the cache of this machine is."""

import os
import pwd
from pathlib import Path

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
