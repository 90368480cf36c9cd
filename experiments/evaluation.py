"""What a trained model is worth: perplexity, translations, their scores, and where its attention looks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu

from attn import Mask, greedy
from experiments import trial
from experiments.batches import Encoded, padded
from experiments.prepared import Heldout
from experiments.tokens import BOS, EOS, Vocabulary


class Scores(NamedTuple):
    """BLEU and chrF as sacrebleu's defaults give them (0 to 100), and the share of exact matches (0 to 1)."""

    bleu: float
    chrf: float
    exact_match: float


def score(translations: list[str], references: list[str]) -> Scores:
    """Corpus scores of translations against one reference each."""
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations for {len(references)} references")
    exact = sum(t == r for t, r in zip(translations, references, strict=True)) / len(references)
    # force: silences sacrebleu's advice about tokenised text, which ends sentences in " ." as CLDR never does.
    bleu = sacrebleu.BLEU(force=True).corpus_score(translations, [references])
    return Scores(bleu.score, sacrebleu.CHRF().corpus_score(translations, [references]).score, exact)


def perplexity(loss_sums, state, pairs: Encoded, rows: int, length: int) -> float:
    """exp of the mean negative log-likelihood per real target piece, end mark included: independent of the batching.

    `loss_sums(state, batch)` is a compiled `trial.loss_sums`.
    """
    sums = [loss_sums(state, batch) for _, batch in padded(pairs, rows, length)]
    nll, pieces = np.sum([[float(nll), int(pieces)] for nll, pieces in sums], axis=0)
    return float(np.exp(nll / pieces))


def translate(search, state, vocabulary: Vocabulary, sources: list[np.ndarray], rows: int, length: int) -> list[str]:
    """Translations in the order of `sources` (ids without marks); an empty source has an empty translation.

    `search(state, source, lengths)` is a compiled `greedy_search`; batches are `rows` sentences of `length` pieces.
    """
    translations = [""] * len(sources)
    worth = [i for i, source in enumerate(sources) if len(source)]
    if not worth:
        return translations
    nothing = [np.zeros(0, np.int32)] * len(worth)
    batches = padded(Encoded([sources[i] for i in worth], nothing), rows, length)
    # Dispatched all at once, so that the device works on the next batch while this one is spelled.
    found = [(indices, search(state, batch.source, (batch.source_segments > 0).sum(-1))) for indices, batch in batches]
    for indices, ids in found:
        for i, text in zip(indices, vocabulary.decode(np.asarray(ids)[: len(indices)]), strict=True):
            translations[worth[i]] = text
    return translations


def greedy_search(program: trial.Program, most: int, state: trial.State, source, lengths):
    """Greedy translations (B, most) of sources (B, N); an empty sentence ends at once."""
    variables = dict(params=state.params, positions=state.positions)
    return greedy(trial.transformer(program), variables, source, lengths, most=most, bos=BOS, eos=EOS)


def attention_weights(program: trial.Program, state: trial.State, source, target, lengths):
    """Weights (B, layers, h, queries, keys) of the encoder, the decoder and between them, for rows of ids."""
    variables = dict(params=state.params, positions=state.positions)
    places = [jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape) for ids in (source, target)]
    seen = Mask.padding(lengths)
    _, kept = trial.transformer(program).apply(variables, source, target, *places, source_mask=seen,
                                               target_mask=Mask.causal(), cross_mask=seen, mutable=["weights"])

    def stacked(side, attention):
        layers = [kept["weights"][f"{side}_{i}"][attention]["weights"] for i in range(program.shape.N)]
        return jnp.stack(layers, axis=1)

    return dict(encoder=stacked("encoder", "self_attention"), decoder=stacked("decoder", "self_attention"),
                cross=stacked("decoder", "cross_attention"))


def examples(weights, state: trial.State, vocabulary: Vocabulary, test: Heldout, translations: list[str], count: int,
             length: int):
    """For `count` test sentences of different lengths: texts, pieces and where attention looks.

    `weights(state, source, target, lengths)` is a compiled `attention_weights`; the decoder reads the translation.
    Returns (records, arrays): what `examples.json` and `examples.npz` hold.
    """
    chosen = _spread_lengths(test.ids.source, count)
    records, arrays = [], {"positions": np.asarray(state.positions["source_positions"]["table"])}
    if not chosen:
        return records, arrays
    read = [vocabulary.encode([translations[i]])[0][: length - 1] for i in chosen]
    pairs = Encoded([test.ids.source[i] for i in chosen], read)
    (order, batch), = padded(pairs, len(chosen), length)
    lengths = (batch.source_segments > 0).sum(-1), (batch.target_segments > 0).sum(-1)
    found = jax.device_get(weights(state, batch.source, batch.target_in, lengths[0]))
    for row, place in enumerate(order):
        n, m = (int(side[row]) for side in lengths)
        cut = dict(encoder=(n, n), decoder=(m, m), cross=(m, n))
        arrays |= {f"{row}/{kind}": found[kind][row, :, :, :q, :k].astype(np.float16) for kind, (q, k) in cut.items()}
        i = chosen[place]
        records.append(dict(source=test.text.source[i], reference=test.text.target[i], translation=translations[i],
                            source_pieces=vocabulary.pieces(batch.source[row, :n]),
                            target_pieces=vocabulary.pieces(batch.target_in[row, :m])))
    return records, arrays


def _spread_lengths(sources, count):
    """Indices of `count` sentences, from the middling to the long: too short shows nothing."""
    order = np.argsort([len(s) for s in sources], kind="stable")
    places = np.linspace(0.5, 0.95, count) * (len(order) - 1)
    return [int(order[round(p)]) for p in places][: len(sources)]
