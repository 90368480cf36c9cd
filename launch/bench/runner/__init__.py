"""Times the runner of experiments itself: whole sweeps, its overhead, and its data."""
