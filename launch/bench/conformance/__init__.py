"""Tries each line of attention's contract on each library."""
