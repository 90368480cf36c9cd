"""Experiments: one file each, `get_config()` and its `sweep_<name>()` generators."""
