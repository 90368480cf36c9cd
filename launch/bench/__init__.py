"""Attention, training and decoding compared: speed, memory, and what each does at the edges, library by library."""
