"""Linen modules: multi-head attention, and the models built from it."""
