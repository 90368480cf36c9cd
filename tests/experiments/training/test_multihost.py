"""A process joins others by what it is told, or by what a scheduler says."""

import jax
import pytest

from experiments.system.signals import STATUS
from experiments.training import multihost, rendezvous


@pytest.fixture
def joined(monkeypatch):
    """Returns what JAX's client is started with, where all have met at once."""
    place = {}
    monkeypatch.setattr(multihost, "_joined", [])
    monkeypatch.setattr(multihost.Rendezvous, "meet", lambda self: 1234)
    monkeypatch.setattr(multihost, "relay", lambda host, port: (host, port))
    monkeypatch.setattr(jax.distributed, "initialize", lambda **x: place.update(x))
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setenv("PYTHONWARNINGS", "")
    return place


@pytest.mark.parametrize(
    "how", ["node0", "node0:4567", "node0:4567,2/2", "node0:4567,0", "automatic"]
)
def test_what_names_no_process_is_refused(how):
    with pytest.raises(multihost.HostError, match="give auto, or HOST:PORT,I/N"):
        multihost.join(how)


def test_the_first_is_its_own_address(joined):
    multihost.join("node0:4567,0/2")
    assert joined["coordinator_address"] == "127.0.0.1:1234"
    assert (joined["process_id"], joined["num_processes"]) == (0, 2)


def test_others_come_through_a_relay(joined):
    multihost.join("[::1]:4567,1/2")
    assert joined["coordinator_address"] == "127.0.0.1:('::1', 1234)"
    assert joined["heartbeat_timeout_seconds"] > rendezvous.SILENCE


def test_what_slurm_says_is_met_too(joined, monkeypatch):
    names = dict(
        JOB_ID="7", STEP_NODELIST="node[3-4]", NTASKS="2", PROCID="1", LOCALID="0"
    )
    for name, value in names.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    multihost.join("auto")
    assert joined["process_id"] == 1
    assert joined["num_processes"] == 2
    assert "'node3', 1234" in joined["coordinator_address"]


def test_where_jax_does_not_say_it_is_left_to_find_out(joined, monkeypatch):
    monkeypatch.setattr(multihost, "_detected", lambda: None)
    multihost.join("auto")
    assert joined == {}
    assert not multihost._joined


def test_the_loss_of_another_ends_with_the_status_to_start_again():
    assert rendezvous.LostError.status == STATUS
    assert rendezvous.HostError.status == 2
