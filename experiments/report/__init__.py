"""Reads results back from files, judges their differences, and writes reports."""
