"""Decoding from a cache equals the full forward pass, for each choice of a description."""

import numpy as np
import pytest

from attn import (
    HEADS,
    SCORES,
    ALiBi,
    Convolutional,
    CoPE,
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
    ScoreResidual,
    SeparableConvolutional,
    TalkingHeads,
    ValueResidual,
    config,
)
from attn.config import GATES
from attn.heads import BlockHeads, Exclusive, IndexedHeads, MultiToken, NativeSparse
from attn.mixers import KimiDelta, LogLinear, Mamba2, Mamba3, Short
from attn.nn.layers import FEED_FORWARDS, GELU, Gated, SiLU
from attn.nn.norms import NORMS, AttnRes, Both, PostFinal, Pre
from attn.positions import PaTH, Wall
from tests.attn.nn.slow_search import (
    EOS,
    MAX_LENGTH,
    SIZES,
    build,
    log_prob_of,
    rescaled,
    searcher,
    sentences,
)

# Each norm, score, feed-forward network and way of heads is in one of them. Every position,
# mixer and residual decodes in `attn.contract`; here are those of which hypotheses that
# change places ask more.
OPTIONS = [
    dict(
        positions=Rotary(),
        norm=PostFinal(),
        biases=True,
        heads=Differential(),
        gate="element",
    ),
    dict(
        positions=ALiBi(),
        score="additive",
        embeddings="target",
        heads=TalkingHeads(),
        gate="head",
    ),
    dict(
        positions=Relative(),
        norm=Pre(),
        score="bilinear",
        embeddings="separate",
        embedding_scale=1.0,
    ),
    dict(
        positions=Learned(),
        encoder_mixing=Restricted(1),
        decoder_mixing=Recurrent("lstm"),
    ),
    dict(
        positions=NoPositions(),
        score="dot",
        encoder_mixing=Convolutional(1),
        decoder_mixing=SeparableConvolutional(1),
        feed_forward=SiLU(),
    ),
    dict(
        positions=ALiBi(),
        score="softcap",
        encoder_mixing=SeparableConvolutional(1),
        decoder_mixing=Restricted(1),
        norm=Both("rms"),
        feed_forward=Gated(),
    ),
    dict(positions=Forget(), residual=ValueResidual(), N=2),
    dict(positions=CoPE(), encoder_mixing=LinearAttention()),
    dict(
        positions=Randomised(),
        score="qk_norm",
        feed_forward=GELU(),
        decoder_mixing=GatedDeltaNet(),
    ),
    dict(positions=PaTH(), encoder_mixing=Short(), decoder_mixing=Short(taps=3)),
    dict(positions=Wall(), decoder_mixing=Short(KimiDelta())),
    dict(positions=Rotary(), heads=Exclusive(), h_kv=1),
    dict(heads=BlockHeads(2, 2), encoder_mixing=Mamba2()),
    dict(decoder_mixing=Mamba3(), encoder_mixing=Mamba3()),
    dict(decoder_mixing=LogLinear(levels=3), encoder_mixing=LogLinear()),
    dict(positions=Rotary(), heads=MultiToken(2, 3)),
    dict(positions=Rotary(), heads=IndexedHeads(2, 2, 3)),
    dict(positions=Rotary(), heads=NativeSparse(2, 2, 3)),
    dict(norm=AttnRes(block=2), N=2),
    dict(residual=ScoreResidual(), decoder={"N": 2, "layer_2": {"h": 2, "d_v": 3}}),
]
TRIED = {options.get("score") for options in OPTIONS}
OPTIONS += [dict(score=name) for name in SCORES if name not in TRIED]
MODELS = [config.Transformer(**SIZES | options) for options in OPTIONS]
RNNS = [
    config.RNN(d_model=10, N=2, cell="lstm", score="additive"),
    config.RNN(d_model=10, N=1, cell="gru", score="none"),
]
# A cache of positions, one of neighbours, and what layers share; .ci/run has all.
QUICK = (0, 3, 6, 9)
CASES = [
    pytest.param(model, marks=() if place in QUICK else pytest.mark.ci)
    for place, model in enumerate(MODELS)
]


@pytest.mark.parametrize("description", [*CASES, *RNNS])
def test_incremental_equals_full(description):
    """log P of the translations from the cache is that of the full forward pass."""
    model, variables = build(description)
    source, lengths = sentences()
    variables = rescaled(variables, [EOS], 0)  # so that translations are long
    result = searcher(model, 2, 2)(variables, source, lengths)
    targets = np.asarray(result.tokens)
    assert ((targets > 0).sum(-1) == MAX_LENGTH).mean() > 0.5
    expected = log_prob_of(model, variables, source, lengths, targets)
    np.testing.assert_allclose(result.log_probs, expected, rtol=3e-5, atol=1e-5)


def test_every_choice_has_been_tried():
    def tried(name):
        values = [getattr(model, name) for model in MODELS]
        return {x if isinstance(x, str) else type(x) for x in values}

    assert tried("score") == set(SCORES)
    assert tried("norm") == set(NORMS.values())
    assert tried("feed_forward") == set(FEED_FORWARDS.values())
    assert tried("heads") == set(HEADS.values())
    assert tried("gate") == set(GATES)
