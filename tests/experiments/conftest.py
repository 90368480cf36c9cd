"""A report that several files look at."""

import pytest

from experiments.report.write import write_report
from tests.experiments import fakes


@pytest.fixture(scope="session")
def table_3(tmp_path_factory):
    """A written report over rows that the paper has, with three seeds: what differs
    from base and what does not."""
    return write_report(
        fakes.table_3(tmp_path_factory.mktemp("table_3")), fakes.REPORTED
    )
