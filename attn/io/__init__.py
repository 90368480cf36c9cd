"""Weights in and out: PyTorch's nn.Transformer, plain dictionaries, files of arrays.

model, variables = from_torch(load("model.safetensors"), h=8)
save("model.npz", to_torch(model, variables))
"""

from attn.io.safetensors import load, save

__all__ = [
    "Names",
    "from_arrays",
    "from_torch",
    "load",
    "save",
    "to_arrays",
    "to_torch",
]
