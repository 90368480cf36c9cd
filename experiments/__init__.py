"""Experiments on attention: from a config to a table."""
