"""A corpus that does not fit on a device trains as one that does."""

import jax
import numpy as np
import pytest

from experiments import feeding, training
from experiments.batches import Batches
from experiments.feeding import Feed
from experiments.population import Lanes
from tests.experiments import tiny


@pytest.mark.ci
def test_a_fed_corpus_trains_the_same(tmp_path, monkeypatch):
    lanes, jobs = Lanes(2, devices=tuple(jax.local_devices()[:1])), {}
    for limit in (feeding.RESIDENT, 0):
        monkeypatch.setattr(feeding, "RESIDENT", limit)
        jobs[limit] = [training.Job(tiny.resolve(seed=seed), tmp_path / f"{limit}-{seed}") for seed in range(2)]
        training.run_all(jobs[limit], tiny.corpus(), lanes)
    for resident, fed in zip(*jobs.values(), strict=True):
        arrays = [np.load(job.path / "sentences.npz")["validation_nll"] for job in (resident, fed)]
        np.testing.assert_array_equal(*arrays)


def test_only_what_is_needed_goes_to_the_devices(monkeypatch):
    monkeypatch.setattr(feeding, "RESIDENT", 0)
    flat = tiny.corpus().train
    slots = Batches(flat, rows=1, row_pieces=48, seed=0).take(2)[None]
    needed, own = Feed(flat, Lanes(devices=tuple(jax.local_devices()[:1])), 48)(slots)
    assert needed.source.ids.size < flat.source.ids.size / 4
    assert own.max() + 1 == (slots >= 0).sum()
