"""What --dry_run says of a cluster, and of the bar."""

SWEEP = (
    "--config=tests/experiments/tiny_config.py",
    "--sweep=heads,seed",
    "--on=slurm",
    "--dry_run",
)


def test_trials_that_one_node_holds_need_no_second(run):
    status, printed, _ = run("sweep", *SWEEP, "--nodes=4")
    assert status == 0
    assert "node-hours" in printed and "the 4 nodes of a trial tell" in printed
    assert "4 trials fit on one node like this machine: with --nodes=1" in printed


def test_one_node_has_nobody_to_tell(run):
    status, printed, _ = run("sweep", *SWEEP)
    assert status == 0
    assert "node-hours" in printed and "tell each other" not in printed


def test_of_the_bar_it_is_the_table_alone(run):
    """All entries have the same 168 points, which a reader need not see."""
    status, printed, _ = run("bar", "score=dot", "--dry_run")
    assert status == 0
    assert "168 trials in 7 groups, each builds" in printed
    assert "data.corpus'" not in printed and len(printed.splitlines()) < 20
