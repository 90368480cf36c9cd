"""Reports that several files look at, and reports without figures."""

import pytest

from experiments.report import write
from experiments.report.page_figures import PageFigures
from experiments.report.write import write_report
from tests.experiments import fakes


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves the figures out of reports, which take most of the time."""
    without = PageFigures({}, (), (), (), (), "", ())
    monkeypatch.setattr(write, "draw_figures", lambda *_: without)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A written report over two points, one of them with one seed, a failed and an
    unfinished trial."""
    failed = {
        "status": "failed",
        "error": "loss is NaN\nat step 125",
        "traceback": "...",
    }
    workdir = fakes.sweep(
        tmp_path_factory.mktemp("sweep"),
        [
            (
                {"seed": 0},
                fakes.finished(
                    1.10,
                    96.0,
                    97.5,
                    0.92,
                    seconds=20.5,
                    beside={"raw": {"test": {"bleu": 96.0}}},
                ),
                {"pairs": fakes.PAIRS},
            ),
            (
                {"seed": 1},
                fakes.finished(1.20, 98.0, 98.5, 0.95),
                {"started": "2026-11-22T01:00:00"},
            ),
            (
                {"model.h": 2, "model.positions": "learned", "seed": 0},
                fakes.finished(200_000.0, 5.04, 12.0, 0.004, parameters=1000),
                {"pairs": fakes.PAIRS[:1]},
            ),
            ({"model.h": 2, "model.positions": "learned", "seed": 1}, failed, {}),
            ({"model.h": 1, "seed": 0}, None, {}),
            ({"model.h": 1, "seed": 1}, None, None),
        ],
    )
    return write_report(workdir, fakes.REPORTED)
