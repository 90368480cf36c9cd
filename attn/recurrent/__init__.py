"""Recurrences of one head whose state is a matrix, in chunks: attention's linear cousins."""
