"""Computes attention weights of trained models, for examples in reports.

B rows of a batch, N layers, H heads.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn import Context, Mask
from experiments.data.batches import Encoded, padded
from experiments.data.corpora import Pairs
from experiments.data.dataset import Heldout
from experiments.data.vocabulary import Labels, Vocabulary
from experiments.objectives import Objective, Translate
from experiments.trial.program import Program, State, build_model

KINDS = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}
"""Kinds of attention, with the stack that each is in and its name there."""


def attention_weights(
    program: Program, state: State, source, target, lengths
) -> dict[str, jax.Array]:
    """Computes weights (B, N, H, queries, keys) of each of KINDS that the model has.

    N are the layers up to the last that attends; weights of a layer that does not, and of
    heads that one lacks, are NaN. `source` and `target` are rows of ids, `lengths` (B,) those
    of the sources.
    """
    kinds = {}
    for kind, layers in attentions(program, state, source, target, lengths).items():
        kinds[kind] = _stacked({i: kept["weights"] for i, kept in layers.items()})
    return kinds


def attentions(
    program: Program, state: State, source, target, lengths
) -> dict[str, dict[int, dict[str, jax.Array]]]:
    """Computes what attention hands out, by kind and layer: its weights (B, H, queries, keys)
    and, where it is known, the max_score (B, H, queries) of each query."""
    # One pair a row, so positions count from the row's beginning.
    real = Mask.padding(lengths)
    both = (
        Context(real, step=state.step),
        Context(Mask.causal(), step=state.step, memory_mask=real),
    )
    # Layers hand these out only where their collections are mutable.
    _, kept = program.objective.call(
        build_model(program).apply,
        state.variables,
        source,
        target,
        both,
        mutable=["weights", "max_score"],
    )
    found = {kind: {} for kind in KINDS}
    for collection, of_model in kept.items():
        for kind, (stack, attention) in KINDS.items():
            # The recurrent model has one attention, in no layer.
            for name, of_layer in (*of_model.items(), (f"{stack}_0", of_model)):
                of_stack, _, number = name.rpartition("_")
                path = path_of(of_layer, attention) if of_stack == stack else ()
                if path:
                    layer = found[kind].setdefault(int(number), {})
                    layer[collection] = below(of_layer, path)[collection]
    return {
        kind: dict(sorted(layers.items())) for kind, layers in found.items() if layers
    }


def path_of(layer: Mapping[str, Any], attention: str) -> tuple[str, ...]:
    """Returns the modules that lead from a layer to an attention; () where it has none.

    A mixer that is around another has that as `inner`.
    """
    if attention in layer:
        return (attention,)
    for name, module in layer.items():
        path = (name,)
        while isinstance(module, Mapping) and "inner" in module:
            path += ("inner",)
            module = module["inner"]
        if path[1:] and attention == "self_attention":
            return path
    return ()


def below(layer: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Returns what is kept below the modules of a path."""
    for name in path:
        layer = layer[name]
    return layer


def _stacked(layers: Mapping[int, jax.Array]) -> jax.Array:
    """Returns the weights of all layers (B, N, H, …), NaN where a layer has no such head."""
    heads = max(weights.shape[1] for weights in layers.values())
    first = next(iter(layers.values()))
    none = jnp.zeros_like(first[:, :0])
    rows = []
    for layer in range(max(layers) + 1):
        weights = layers.get(layer, none)
        lacking = heads - weights.shape[1]
        widths = ((0, 0), (0, lacking), (0, 0), (0, 0))
        rows.append(jnp.pad(weights, widths, constant_values=jnp.nan))
    return jnp.stack(rows, axis=1)


def attention_examples(
    weights: Callable,
    state: State,
    vocabulary: Vocabulary,
    test: Heldout,
    translations: Sequence[str],
    count: int,
    length: int,
    objective: Objective = Translate(),
    target_vocabulary: Vocabulary | Labels | None = None,
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Computes where attention looks in `count` test sentences of different lengths.

    `weights(state, source, target, lengths)` is a compiled `attention_weights`; the decoder
    reads the translation; where this answers in places, the source; a label it only names.
    Returns
    (records, arrays): what `examples.json` and `examples.npz` hold.
    """
    chosen = _spread_lengths(test.ids.source, count)
    arrays = {}
    if state.positions:
        # The first by name is that of the source, where there is one.
        table = state.positions[min(state.positions)]["table"]
        arrays["positions"] = np.asarray(table)
    if not chosen:
        return [], arrays
    some = Sentences(
        [test.ids.source[i] for i in chosen],
        Pairs(*([side[i] for i in chosen] for side in test.text)),
        [translations[i] for i in chosen],
    )
    of_target = target_vocabulary or vocabulary
    records, maps = attention_of(
        weights, state, vocabulary, some, length, objective, of_target
    )
    return records, arrays | maps


class Sentences(NamedTuple):
    """Holds sources with their ids, references, and what a model made of them."""

    ids: Sequence[np.ndarray]
    text: Pairs
    translations: Sequence[str]


def attention_of(
    weights: Callable,
    state: State,
    vocabulary: Vocabulary,
    sentences: Sentences,
    length: int,
    objective: Objective = Translate(),
    target_vocabulary: Vocabulary | Labels | None = None,
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Computes where attention looks in all of some sentences, see `attention_examples`."""
    of_target = target_vocabulary or vocabulary
    # One token less than the row, which holds a mark too.
    targets = [
        of_target.encode([text])[0][: length - 1] for text in sentences.translations
    ]
    pairs = Encoded(sentences.ids, targets)
    ((order, batch),) = padded(pairs, len(targets), length, objective)
    source_lengths = (batch.source_segments > 0).sum(-1)
    target_lengths = (batch.target_segments > 0).sum(-1)
    kinds = jax.device_get(
        weights(state, batch.source, batch.target_in, source_lengths)
    )
    arrays = {}
    records = []
    read = dict(texts=batch.target_in, places=batch.source, labels=batch.target_out)
    for row, i in enumerate(order):
        n = int(source_lengths[row])
        m = int(target_lengths[row])
        sizes = dict(encoder=(n, n), decoder=(m, m), cross=(m, n))
        for kind, (queries, keys) in sizes.items():
            if kind in kinds:
                example = kinds[kind][row, :, :, :queries, :keys]
                # Half the size; a report draws them in 256 levels.
                arrays[f"{row}/{kind}"] = example.astype(np.float16)
        record = dict(
            source=sentences.text.source[i],
            reference=sentences.text.target[i],
            translation=sentences.translations[i],
            source_tokens=vocabulary.tokens(batch.source[row, :n]),
            target_tokens=of_target.tokens(read[objective.targets][row, :m]),
        )
        records.append(record)
    return records, arrays


def _spread_lengths(sources, count):
    """Returns indices of `count` sentences, from the middling to the long."""
    # Short sentences show nothing.
    order = np.argsort([len(source) for source in sources], kind="stable")
    places = np.linspace(0.5, 0.95, count) * (len(order) - 1)
    return [int(order[round(place)]) for place in places][: len(sources)]
