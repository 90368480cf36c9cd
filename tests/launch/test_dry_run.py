"""What --dry_run says of a cluster."""

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
