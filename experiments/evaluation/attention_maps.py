"""TODO."""

import jax
import jax.numpy as jnp
import numpy as np

from attn import Mask
from experiments.data.batches import Encoded, padded
from experiments.data.dataset import Heldout
from experiments.data.vocabulary import Vocabulary
from experiments.trial.program import Program, State, build_model, call_model


def attention_weights(program: Program, state: State, source, target, lengths):
    """Weights (B, layers, h, queries, keys) of the encoder, the decoder and between them, as far as there is attention,
    for rows of ids."""
    variables = dict(params=state.params, positions=state.positions)
    places = [
        jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        for ids in (source, target)
    ]
    seen = Mask.padding(lengths)
    _, kept = call_model(
        build_model(program).apply,
        program,
        variables,
        source,
        target,
        places,
        (seen, Mask.causal(), seen),
        mutable=["weights"],
    )

    found, kinds = kept.get("weights", {}), {}
    for kind, side, name in (
        ("encoder", "encoder", "self_attention"),
        ("decoder", "decoder", "self_attention"),
        ("cross", "decoder", "cross_attention"),
    ):
        layers = [found.get(f"{side}_{i}", {}) for i in range(program.shape.N)]
        if layers := [
            layer[name]["weights"] for layer in (*layers, found) if name in layer
        ]:
            kinds[kind] = jnp.stack(layers, axis=1)
    return kinds


def attention_examples(
    weights,
    state: State,
    vocabulary: Vocabulary,
    test: Heldout,
    translations: list[str],
    count: int,
    length: int,
):
    """For `count` test sentences of different lengths: texts, tokens and where attention looks.

    `weights(state, source, target, lengths)` is a compiled `attention_weights`; the decoder reads the translation.
    Returns (records, arrays): what `examples.json` and `examples.npz` hold.
    """
    chosen = _spread_lengths(test.ids.source, count)
    records, arrays = [], {}
    if state.positions:
        arrays["positions"] = np.asarray(state.positions[min(state.positions)]["table"])
    if not chosen:
        return records, arrays
    read = [vocabulary.encode([translations[i]])[0][: length - 1] for i in chosen]
    pairs = Encoded([test.ids.source[i] for i in chosen], read)
    ((order, batch),) = padded(pairs, len(chosen), length)
    lengths = (batch.source_segments > 0).sum(-1), (batch.target_segments > 0).sum(-1)
    found = jax.device_get(weights(state, batch.source, batch.target_in, lengths[0]))
    for row, place in enumerate(order):
        n, m = (int(side[row]) for side in lengths)
        cut = dict(encoder=(n, n), decoder=(m, m), cross=(m, n))
        arrays |= {
            f"{row}/{kind}": found[kind][row, :, :, :q, :k].astype(np.float16)
            for kind, (q, k) in cut.items()
            if kind in found
        }
        i = chosen[place]
        records.append(
            dict(
                source=test.text.source[i],
                reference=test.text.target[i],
                translation=translations[i],
                source_tokens=vocabulary.tokens(batch.source[row, :n]),
                target_tokens=vocabulary.tokens(batch.target_in[row, :m]),
            )
        )
    return records, arrays


def _spread_lengths(sources, count):
    """Indices of `count` sentences, from the middling to the long: too short shows nothing."""
    order = np.argsort([len(s) for s in sources], kind="stable")
    places = np.linspace(0.5, 0.95, count) * (len(order) - 1)
    return [int(order[round(p)]) for p in places][: len(sources)]
