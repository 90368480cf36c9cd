"""Holds the Transformer to torch.nn.Transformer of the same weights."""
