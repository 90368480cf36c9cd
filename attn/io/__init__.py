"""Weights in and out: plain dictionaries of arrays, and files of them.

save("model.safetensors", to_arrays(variables))
variables = from_arrays(model, load("model.safetensors"))
"""

from attn.io.arrays import from_arrays, to_arrays
from attn.io.files import load, save

__all__ = ["from_arrays", "load", "save", "to_arrays"]
