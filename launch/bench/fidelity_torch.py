"""torch.nn.Transformer with embeddings, positions and output around it, as its users write it: numbers to be met."""

import warnings

import numpy as np
import torch
from torch import nn

from launch.bench.fidelity import LENGTH, SHAPE, VOCABULARY, Batch, Case


class Model(nn.Module):
    """Its names are those that `attn.interop.Names` has, and "transformer." before nn.Transformer's own."""

    def __init__(self, case: Case):
        super().__init__()
        N, d_model, d_ff, h, *_ = SHAPE
        self.src_embed, self.tgt_embed = nn.Embedding(VOCABULARY, d_model), nn.Embedding(VOCABULARY, d_model)
        self.src_pos, self.tgt_pos = nn.Embedding(LENGTH, d_model), nn.Embedding(LENGTH, d_model)
        self.generator = nn.Linear(d_model, VOCABULARY, bias=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a shortcut in evaluation, which this is not
            self.transformer = nn.Transformer(d_model, h, N, N, d_ff, 0.0, case.activation, batch_first=True,
                                              norm_first=case.norm == "pre", bias=case.biases)
        if case.norm == "post":
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        if case.tied:
            self.tgt_embed = self.src_embed
            self.generator.weight = self.src_embed.weight
        for parameter in self.parameters():  # for PyTorch begins with biases of 0 and scales of 1
            nn.init.normal_(parameter, parameter.ndim == 1, 0.1)

    def forward(self, batch: Batch):
        source, target = (torch.from_numpy(ids) for ids in (batch.source, batch.target))
        padding, target_padding = (torch.from_numpy(~real) for real in (batch.source_real, batch.target_real))
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        x, y = (embed(ids) * SHAPE.d_model**0.5 + places.weight[: ids.shape[1]] for embed, places, ids in (
            (self.src_embed, self.src_pos, source), (self.tgt_embed, self.tgt_pos, target)))
        return self.generator(self.transformer(
            x, y, tgt_mask=future, src_key_padding_mask=padding, tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=padding))


def draw(case: Case, seed: int) -> dict[str, np.ndarray]:
    """Weights at random, in float32."""
    torch.manual_seed(seed)
    return {name: x.numpy() for name, x in Model(case).state_dict().items()}


def run(case: Case, weights: dict[str, np.ndarray], batch: Batch, dtype: type) -> dict[str, np.ndarray]:
    """The logits of real pieces, and the gradients of all weights, by name."""
    model = Model(case).to(torch.from_numpy(np.zeros(0, dtype)).dtype).train()
    model.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
    logits = model(batch)
    (logits * torch.from_numpy(batch.pull.astype(dtype))).sum().backward()
    gradients = {name: x.grad.numpy() for name, x in model.named_parameters(remove_duplicate=False)}
    return {"logits": logits.detach().numpy()[batch.target_real], **gradients}
