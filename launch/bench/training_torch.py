"""The training step with torch.nn.Transformer, eager, as its users write it."""

import functools
import os

import torch
from torch import nn

from launch.bench import steps
from launch.bench.steps import Case
from launch.bench.timing import Adapter, Program

torch.set_num_threads(int(os.environ["NPROC"]))


class Model(nn.Module):
    """Logits of every target piece; one matrix for both embeddings and the output."""

    def __init__(self, case: Case):
        super().__init__()
        self.scale, self.drop = case.d_model**0.5, nn.Dropout(case.P_drop)
        self.embedding = nn.Embedding(case.vocabulary, case.d_model)
        nn.init.normal_(self.embedding.weight, std=case.d_model**-0.5)
        self.register_buffer("positions", _sinusoids(case))
        self.transformer = nn.Transformer(case.d_model, case.h, case.N, case.N, case.d_ff, case.P_drop,
                                          batch_first=True)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(case.pieces))

    def forward(self, source, target):
        hidden = self.transformer(self._embedded(source), self._embedded(target), tgt_mask=self.causal,
                                  tgt_is_causal=True)
        return hidden @ self.embedding.weight.T

    def _embedded(self, ids):
        return self.drop(self.embedding(ids) * self.scale + self.positions)


def _sinusoids(case):
    angle = torch.arange(case.pieces)[:, None] * 10_000 ** (-torch.arange(0, case.d_model, 2) / case.d_model)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def model(case: Case, as_paper: bool) -> Model:
    """`as_paper`: without the dropout of attention weights and hidden units."""
    found = Model(case).train()
    for module in found.modules() if as_paper else ():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout.p = 0.0
    return found


def torch_step(case: Case, as_paper: bool = False) -> Program:
    torch.manual_seed(0)
    source, target_in, target_out = (torch.tensor(a, dtype=torch.long) for a in steps.padded(case))
    one, loss = model(case, as_paper), nn.CrossEntropyLoss(label_smoothing=steps.EPS_LS)
    adam = torch.optim.Adam(one.parameters(), case.rate, steps.BETAS, steps.EPSILON)

    def run():
        adam.zero_grad()
        found = loss(one(source, target_in).flatten(0, 1), target_out.flatten())
        found.backward()
        adam.step()
        return float(found.detach())

    return steps.program(run)


PEERS = {"torch": Adapter(torch_step), "torch:as-paper": Adapter(functools.partial(torch_step, as_paper=True))}
