"""Reports that several files look at, and reports without figures."""

import pytest

from experiments.report import write
from experiments.report.page_figures import PageFigures
from experiments.report.write import write_report
from tests.experiments import fakes

FAILED = {"status": "failed", "error": "loss is NaN\nat step 125", "traceback": "..."}


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves the figures out of reports, which take most of the time."""
    without = PageFigures((), (), (), (), (), "", ())
    monkeypatch.setattr(write, "draw_figures", lambda *_: without)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A written report over two points, one of them with one seed, a failed and an
    unfinished trial."""
    beside = {"raw": {"test": {"bleu": 96.0}}}
    first = fakes.finished(1.10, 96.0, 97.5, 0.92, seconds=20.5, beside=beside)
    second = fakes.finished(1.20, 98.0, 98.5, 0.95)
    wild = fakes.finished(200_000.0, 5.04, 12.0, 0.004, parameters=1000)
    learned = {"model.h": 2, "model.positions": "learned"}
    trials = [
        ({"seed": 0}, first, {"pairs": fakes.PAIRS}),
        ({"seed": 1}, second, {"started": "2026-11-22T01:00:00"}),
        ({**learned, "seed": 0}, wild, {"pairs": fakes.PAIRS[:1]}),
        ({**learned, "seed": 1}, FAILED, {}),
        ({"model.h": 1, "seed": 0}, None, {}),
        ({"model.h": 1, "seed": 1}, None, None),
    ]
    workdir = fakes.sweep(tmp_path_factory.mktemp("sweep"), trials)
    return write_report(workdir, fakes.REPORTED)
