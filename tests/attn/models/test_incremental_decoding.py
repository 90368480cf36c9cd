"""Decoding from a cache equals the full forward pass, for each choice of a design."""

import numpy as np
import pytest

from attn import (
    HEADS,
    MIXERS,
    POSITIONS,
    RNN,
    SCORES,
    T5,
    ALiBi,
    Convolutional,
    Design,
    Differential,
    Learned,
    NoPositions,
    Recurrent,
    Relative,
    Restricted,
    Rotary,
    SeparableConvolutional,
    Separate,
    Sinusoidal,
    TalkingHeads,
)
from attn.models.design import NORMS
from attn.models.heads import GATES
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

# Each value of each choice is in one of them.
DESIGNS = [
    Design(score="dot", norm="pre"),
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
        score="bilinear",
        embeddings="separate",
        scale_embeddings=False,
    ),
    Design(positions=T5(), activation="gelu", score="qk_norm", heads=Separate()),
    Design(
        positions=Learned(),
        encoder_mixing=Recurrent("lstm"),
        decoder_mixing=Recurrent("lstm"),
    ),
    Design(
        positions=Sinusoidal(layout="halves"),
        encoder_mixing=Restricted(1),
        decoder_mixing=Convolutional(1),
    ),
    Design(
        positions=NoPositions(),
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
TRIED = {type(value) for design in DESIGNS for value in design}
TRIED |= {design.score for design in DESIGNS}
# What was added since.
FIRST = len(DESIGNS)
DESIGNS += [Design(score=name) for name in SCORES if name not in TRIED]
DESIGNS += [Design(positions=cls()) for cls in POSITIONS.values() if cls not in TRIED]
DESIGNS += [Design(heads=cls()) for cls in HEADS.values() if cls not in TRIED]
DESIGNS += [
    Design(encoder_mixing=cls(), decoder_mixing=cls())
    for cls in MIXERS.values()
    if cls not in TRIED
]
RECURRENT = [
    RNN(VOCABULARY, LENGTH, 10, 2, "lstm", "additive"),
    RNN(VOCABULARY, LENGTH, 10, 1, "gru", "none"),
]
# What was added since has steps that `attn.contract` compares with the full pass.
BUILT = [
    pytest.param((design, None), marks=() if place < FIRST else pytest.mark.ci)
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
    positions = {type(design.positions) for design in DESIGNS}
    assert positions == set(POSITIONS.values())
    assert {design.score for design in DESIGNS} == set(SCORES)
    assert {design.norm for design in DESIGNS} == set(NORMS)
    assert {type(design.heads) for design in DESIGNS} == set(HEADS.values())
    assert {design.gate for design in DESIGNS} == set(GATES)
    for side in ("encoder_mixing", "decoder_mixing"):
        mixers = {type(getattr(design, side)) for design in DESIGNS}
        assert mixers == set(MIXERS.values())
