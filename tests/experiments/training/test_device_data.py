"""A corpus that does not fit on a device trains as one that does."""

import jax
import numpy as np
import pytest

from experiments.data.batches import Batches
from experiments.training import device_data, loop
from experiments.training.device_data import DeviceData
from experiments.trial.lanes import Lanes
from tests.experiments import tiny


@pytest.mark.ci
def test_a_fed_corpus_trains_the_same(tmp_path, monkeypatch):
    lanes = Lanes(2, devices=tuple(jax.local_devices()[:1]))
    jobs = {}
    for limit in (device_data.RESIDENT, 0):
        monkeypatch.setattr(device_data, "RESIDENT", limit)
        jobs[limit] = [
            loop.Job(tiny.shared(seed=seed), tmp_path / f"{limit}-{seed}")
            for seed in range(2)
        ]
        loop.run_all(jobs[limit], tiny.corpus(), lanes)
    for resident, fed in zip(*jobs.values(), strict=True):
        arrays = [
            np.load(job.path / "sentences.npz")["validation_nll"]
            for job in (resident, fed)
        ]
        np.testing.assert_array_equal(*arrays)


def test_only_what_is_needed_goes_to_the_devices(monkeypatch):
    monkeypatch.setattr(device_data, "RESIDENT", 0)
    flat = tiny.corpus().train
    slots = Batches(flat, batch_size=1, sequence_length=48, seed=0).take(2)[None]
    needed, own = DeviceData(flat, Lanes(devices=tuple(jax.local_devices()[:1])), 48)(
        slots
    )
    assert needed.source.ids.size < flat.source.ids.size / 4
    assert own.max() + 1 == (slots >= 0).sum()
