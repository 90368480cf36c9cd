"""Kernels compute the attention of one head."""
