"""Builds the training step with torch.nn.Transformer, eager, as its users write it."""

import functools

import torch
from torch import nn

from launch.bench.harness.libraries import Adapter, Program
from launch.bench.harness.torch_device import DEVICE, growth
from launch.bench.training import case as steps
from launch.bench.training.case import Case


class Model(nn.Module):
    """Computes the logits of every target token.

    One matrix serves both embeddings and the output.
    """

    def __init__(self, case: Case):
        super().__init__()
        self.scale = case.d_model**0.5
        self.drop = nn.Dropout(case.P_drop)
        self.embedding = nn.Embedding(case.vocabulary, case.d_model)
        # It is the output's matrix too, so logits are of order 1 at first.
        nn.init.normal_(self.embedding.weight, std=case.d_model**-0.5)
        self.register_buffer("positions", _sinusoids(case))
        self.transformer = nn.Transformer(
            case.d_model,
            case.h,
            case.N,
            case.N,
            case.d_ff,
            case.P_drop,
            batch_first=True,
        )
        causal = nn.Transformer.generate_square_subsequent_mask(case.tokens)
        self.register_buffer("causal", causal)

    def forward(self, source, target):
        hidden = self.transformer(
            self._embedded(source),
            self._embedded(target),
            tgt_mask=self.causal,
            # Said beside the mask, so that PyTorch may take its causal kernel.
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.T

    def _embedded(self, ids):
        return self.drop(self.embedding(ids) * self.scale + self.positions)


def _sinusoids(case):
    position = torch.arange(case.tokens)[:, None]
    exponent = -torch.arange(0, case.d_model, 2) / case.d_model
    angle = position * 10_000**exponent
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def model(case: Case, as_paper: bool) -> Model:
    """Returns the model in training mode.

    With `as_paper`, attention weights and hidden units have no dropout.
    """
    built = Model(case).train()
    if as_paper:
        layers = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
        for module in built.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, layers):
                # That of hidden units; those of sub-layers are dropout1 to 3.
                module.dropout.p = 0.0
    return built


def torch_step(case: Case, as_paper: bool = False, compiled: bool = False) -> Program:
    """Builds a step with torch.optim.Adam."""
    steps.check_lanes(case)
    torch.manual_seed(0)
    batch = [
        torch.tensor(a, dtype=torch.long, device=DEVICE) for a in steps.padded(case)
    ]
    transformer = model(case, as_paper).to(DEVICE)
    loss = nn.CrossEntropyLoss(label_smoothing=steps.EPS_LS)
    adam = torch.optim.Adam(
        transformer.parameters(), case.rate, steps.BETAS, steps.EPSILON, fused=compiled
    )
    is_half = case.precision == "bfloat16"

    def mean_loss(source, target_in, target_out):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=is_half):
            logits = transformer(source, target_in)
            return loss(logits.flatten(0, 1), target_out.flatten())

    function = torch.compile(mean_loss) if compiled else mean_loss

    def run():
        adam.zero_grad()
        mean = function(*batch)
        mean.backward()
        adam.step()
        return float(mean.detach())

    return steps.program(run, growth=growth)


ADAPTERS = {
    "torch": Adapter(torch_step),
    "torch:as-paper": Adapter(functools.partial(torch_step, as_paper=True)),
    "torch:compiled": Adapter(
        functools.partial(torch_step, as_paper=True, compiled=True)
    ),
}
