"""Trains trials: the loop, a run and its files, checkpoints, several processes."""
