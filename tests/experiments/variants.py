"""Changes to the settings that try every value of every registry: what is new is here too."""

import itertools

from attn import HEADS, MIXERS, NORMALISERS, POSITIONS, RESIDUALS, SCORES
from attn.config import CELLS, GATES
from attn.nn.layers import FEED_FORWARDS
from attn.nn.norms import NORMS
from attn.positions import SCALINGS

LAYERS = {"model.h": 2, "model.d_k": 4, "model.d_v": 4, "model.d_ff": 8}
LANGUAGE = {"model.kind": "language", **LAYERS}

PLACES = [{"model.positions": name} for name in POSITIONS]
PLACES += [
    {"model.positions": f"rotary(scaling={name!r},factor=4.0,length=8)"}
    for name in SCALINGS
]
PLACES += [{"model.positions": "kerple(kernel='power')"}]
MIXED = [{"model.decoder_mixing": name} for name in MIXERS]
MIXED += [{"model.decoder_mixing": f"recurrence(cell={cell!r})"} for cell in CELLS]
MIXED += [
    {"model.residual": residual, "model.norm": norm, "model.feed_forward": feed}
    for residual, norm, feed in itertools.islice(
        zip(
            itertools.cycle(RESIDUALS),
            itertools.cycle(NORMS),
            itertools.cycle(FEED_FORWARDS),
            strict=False,
        ),
        max(len(RESIDUALS), len(NORMS), len(FEED_FORWARDS)),
    )
]
CHOICES = {
    "model.normaliser": NORMALISERS,
    "model.score": SCORES,
    "model.heads": HEADS,
    "model.gate": GATES,
}
"""Those that say how much each key counts, several of them in one model."""
COUNT = max(map(len, CHOICES.values()))
TOGETHER = zip(*map(itertools.cycle, CHOICES.values()), strict=True)
HEADED = [
    dict(zip(CHOICES, values, strict=True))
    for values in itertools.islice(TOGETHER, COUNT)
]
for of_all in HEADED:
    if of_all["model.heads"] == "native_sparse":
        # Its blocks take softmax alone.
        of_all["model.normaliser"] = "softmax"
HEADED += [
    {"model.combine": "mean", "model.h_kv": 1},
    {"model.d_c": 6, "model.d_r": 4, "model.positions": "rotary"},
]
RECURRENT = [
    {"model.cell": "gru"},
    {"model.score": "none"},
    {"model.selection": "argmax"},
]
"""Of a model of kind rnn."""


def name_of(changes):
    """Returns the name of a case: the values, without sizes."""
    values = [str(x) for key, x in changes.items() if key not in LAYERS]
    return " ".join(values)


def both_sides(changes):
    """Returns the changes with the decoder's mixer in the encoder too."""
    if "model.decoder_mixing" not in changes:
        return changes
    return {**changes, "model.encoder_mixing": changes["model.decoder_mixing"]}
