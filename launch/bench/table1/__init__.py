"""Measures Table 1 of the paper: what mixes positions, and what it costs."""
