"""Handles files, the machine, processes and signals; knows nothing of experiments."""
