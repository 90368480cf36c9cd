"""Attention compared: how fast it is, how much memory it takes, and what it does at the edges, library by library."""
