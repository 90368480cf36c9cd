"""Decoding from a cache equals the full forward pass, for each choice of a design."""

import numpy as np
import pytest
from attn.models.design import NORMS
from attn.models.heads import GATES

from attn import (
    HEADS,
    RNN,
    SCORES,
    ALiBi,
    Convolutional,
    CoPE,
    Design,
    Differential,
    Forget,
    GatedDeltaNet,
    Learned,
    LinearAttention,
    NoPositions,
    Randomised,
    Recurrent,
    Relative,
    Restricted,
    Rotary,
    SeparableConvolutional,
    TalkingHeads,
)
from tests.attn.models.slow_search import (
    EOS,
    LENGTH,
    MAX_LENGTH,
    VOCABULARY,
    build,
    log_prob_of,
    rescaled,
    searcher,
    sentences,
)

# Each norm, score and way of heads is in one of them. Every position and mixer decodes in
# `attn.contract`; here are those of which hypotheses that change places ask more.
DESIGNS = [
    Design(
        positions=Rotary(),
        norm="post_final",
        biases=True,
        heads=Differential(),
        gate="element",
    ),
    Design(
        positions=ALiBi(),
        score="additive",
        embeddings="target",
        heads=TalkingHeads(),
        gate="head",
    ),
    Design(
        positions=Relative(),
        norm="pre",
        score="bilinear",
        embeddings="separate",
        scale_embeddings=False,
    ),
    Design(
        positions=Learned(),
        encoder_mixing=Restricted(1),
        decoder_mixing=Recurrent("lstm"),
    ),
    Design(
        positions=NoPositions(),
        score="dot",
        encoder_mixing=Convolutional(1),
        decoder_mixing=SeparableConvolutional(1),
    ),
    Design(
        positions=ALiBi(),
        score="softcap",
        encoder_mixing=SeparableConvolutional(1),
        decoder_mixing=Restricted(1),
    ),
]
DESIGNS += [
    Design(positions=Forget()),
    Design(positions=CoPE(), encoder_mixing=LinearAttention()),
    Design(
        positions=Randomised(),
        score="qk_norm",
        activation="gelu",
        decoder_mixing=GatedDeltaNet(),
    ),
]
TRIED = {design.score for design in DESIGNS}
DESIGNS += [Design(score=name) for name in SCORES if name not in TRIED]
TRIED = {type(design.heads) for design in DESIGNS}
DESIGNS += [Design(heads=cls()) for cls in HEADS.values() if cls not in TRIED]
RECURRENT = [
    RNN(VOCABULARY, LENGTH, 10, 2, "lstm", "additive"),
    RNN(VOCABULARY, LENGTH, 10, 1, "gru", "none"),
]
# A cache of positions, and of neighbours; .ci/run has all kinds of heads, and of states.
BUILT = [
    pytest.param((design, None), marks=() if place in (0, 3) else pytest.mark.ci)
    for place, design in enumerate(DESIGNS)
]
BUILT += [(Design(), model) for model in RECURRENT]


@pytest.mark.parametrize("how", BUILT)
def test_incremental_equals_full(how):
    """log P of the translations from the cache is that of the full forward pass."""
    model, variables = build(VOCABULARY, *how)
    source, lengths = sentences()
    variables = rescaled(variables, [EOS], 0)  # so that translations are long
    result = searcher(model, 2, 2)(variables, source, lengths)
    targets = np.asarray(result.tokens)
    assert ((targets > 0).sum(-1) == MAX_LENGTH).mean() > 0.5
    expected = log_prob_of(model, variables, source, lengths, targets)
    np.testing.assert_allclose(result.log_probs, expected, rtol=3e-5, atol=1e-5)


def test_every_choice_has_been_tried():
    assert {design.score for design in DESIGNS} == set(SCORES)
    assert {design.norm for design in DESIGNS} == set(NORMS)
    assert {type(design.heads) for design in DESIGNS} == set(HEADS.values())
    assert {design.gate for design in DESIGNS} == set(GATES)
