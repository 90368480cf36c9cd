"""Computes logits and gradients with torch.nn.Transformer.

Embeddings, positions and output stand around it as its users write them.
"""

import warnings

import numpy as np
import torch
from torch import nn

from launch.bench.fidelity.case import LENGTH, SIZES, VOCABULARY, Batch, Case


class Model(nn.Module):
    """Computes logits (B, M, Y).

    Its arrays have the names that `launch.bench.fidelity.attn.to_torch` gives.
    """

    def __init__(self, case: Case):
        super().__init__()
        d_model = SIZES["d_model"]
        self.src_embed = nn.Embedding(VOCABULARY, d_model)
        self.tgt_embed = nn.Embedding(VOCABULARY, d_model)
        self.src_pos = nn.Embedding(LENGTH, d_model)
        self.tgt_pos = nn.Embedding(LENGTH, d_model)
        self.generator = nn.Linear(d_model, VOCABULARY, bias=False)
        with warnings.catch_warnings():
            # It warns of a shortcut in evaluation; this model only trains.
            warnings.simplefilter("ignore", UserWarning)
            self.transformer = nn.Transformer(
                d_model,
                SIZES["h"],
                SIZES["N"],
                SIZES["N"],
                SIZES["d_ff"],
                dropout=0.0,
                activation=case.activation,
                batch_first=True,
                norm_first=case.norm == "pre",
                bias=case.biases,
            )
        # The paper has no LayerNorm after a stack; PyTorch always makes one.
        if case.norm == "post":
            self.transformer.encoder.norm = None
            self.transformer.decoder.norm = None
        if case.tied:
            self.tgt_embed = self.src_embed
            self.generator.weight = self.src_embed.weight

    def forward(self, batch: Batch):
        source = torch.from_numpy(batch.source)
        target = torch.from_numpy(batch.target)
        source_padding = torch.from_numpy(~batch.source_real)
        target_padding = torch.from_numpy(~batch.target_real)
        size = target.shape[1]
        future = torch.ones(size, size, dtype=torch.bool).triu(1)
        hidden = self.transformer(
            _embedded(self.src_embed, self.src_pos, source),
            _embedded(self.tgt_embed, self.tgt_pos, target),
            tgt_mask=future,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.generator(hidden)


def _embedded(embedding, positions, ids):
    scaled = embedding(ids) * SIZES["d_model"] ** 0.5
    return scaled + positions.weight[: ids.shape[1]]


def run(
    case: Case, weights: dict[str, np.ndarray], batch: Batch, dtype: type
) -> dict[str, np.ndarray]:
    """Returns the logits of real tokens, and the gradients of all weights, by name."""
    torch_dtype = torch.from_numpy(np.zeros(0, dtype)).dtype
    model = Model(case).to(torch_dtype).train()
    state = {name: torch.from_numpy(x) for name, x in weights.items()}
    model.load_state_dict(state)
    logits = model(batch)
    logit_weights = torch.from_numpy(batch.logit_weights.astype(dtype))
    (logits * logit_weights).sum().backward()
    results = {"logits": logits.detach().numpy()[batch.target_real]}
    # A tied matrix counts by each of its names, as in attn's arrays.
    for name, x in model.named_parameters(remove_duplicate=False):
        results[name] = x.grad.numpy()
    return results
