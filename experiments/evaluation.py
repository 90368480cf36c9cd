"""What a trained model is worth: perplexity, translations, their scores, and where its attention looks."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu
import sacremoses

from attn import Mask, beam_search
from experiments import trial
from experiments.batches import Encoded, padded
from experiments.prepared import Heldout
from experiments.tokens import BOS, EOS, Vocabulary


class Search(NamedTuple):
    """How translations are searched for; at most `most` pieces, and at most `extra` more than the source has."""

    beam: int
    alpha: float
    most: int
    extra: int
    n_best: int = 1


class Hypothesis(NamedTuple):
    """A translation with its log-probability over its length penalty, by which the best is chosen."""

    score: float
    text: str


def sentence_statistics(translations: list[str], references: list[str], tokens_of: str = "") -> np.ndarray:
    """What BLEU is made of, for each sentence: correct 1- to 4-grams, all 1- to 4-grams, length, reference's length.

    int32 (sentences, 10). The `bleu` of `score` is that of their sum, see sacrebleu.BLEU.compute_bleu.
    """
    bleu = sacrebleu.BLEU(tokenize="none" if tokens_of else "13a", effective_order=True)
    found = [bleu.sentence_score(t, [r]) for t, r in zip(translations, references, strict=True)]
    rows = [[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found]
    return np.array(rows, np.int32).reshape(-1, 10)


def score(translations: list[str], references: list[str], tokens_of: str = "") -> dict[str, float]:
    """Corpus scores of translations against one reference each, by name.

    `bleu` and `chrf` as sacreBLEU's defaults give them (0 to 100), and `exact_match`, the share (0 to 1). For text in
    Moses tokens of the language `tokens_of`, `bleu` is over the tokens as they stand, as papers give it that publish
    such text, and `bleu_detokenized` is sacreBLEU's default on both sides detokenised.
    """
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations for {len(references)} references")
    exact = sum(t == r for t, r in zip(translations, references, strict=True)) / len(references)
    scores = dict(bleu=_bleu(translations, references, tokenize="none" if tokens_of else "13a"),
                  chrf=sacrebleu.CHRF().corpus_score(translations, [references]).score, exact_match=exact)
    if tokens_of:
        plain = [detokenized(side, tokens_of) for side in (translations, references)]
        scores["bleu_detokenized"] = _bleu(*plain, tokenize="13a")
    return scores


def _bleu(translations, references, tokenize):
    # force: silences sacrebleu's advice about tokenised text, which ends sentences in " ." as CLDR never does.
    return sacrebleu.BLEU(tokenize=tokenize, force=True).corpus_score(translations, [references]).score


def detokenized(sentences: list[str], language: str) -> list[str]:
    """Sentences in Moses tokens as plain text."""
    detokenizer = sacremoses.MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(sentence.split()) for sentence in sentences]


def sentence_losses(piece_losses, states, pairs: Encoded, rows: int, length: int,
                    check: Callable[[], None] = lambda: None):
    """(−log p of each target sentence, its end mark included, (L, sentences); how many pieces those are (sentences,)).

    `piece_losses(states, batch)` is a compiled `trial.piece_losses` of L lanes. `check()` is called between batches;
    what it raises ends this.
    """
    nll, pieces = None, np.zeros(len(pairs.target), np.int64)
    for indices, losses, real in _one_ahead(((indices, piece_losses(states, batch), batch.target_segments > 0)
                                             for indices, batch in padded(pairs, rows, length)), check):
        rows_of = np.where(real[None], np.asarray(losses, np.float64), 0).sum(-1)
        nll = np.zeros((len(rows_of), len(pairs.target))) if nll is None else nll
        nll[:, indices], pieces[indices] = rows_of[:, : len(indices)], real.sum(-1)[: len(indices)]
    return nll, pieces


def _one_ahead(dispatched: Iterable, check: Callable[[], None]) -> Iterator:
    """Results, each when the next is dispatched: the device works on that while this one is spelled.

    No more than that, for a process that is told to stop must wait for all that is dispatched.
    """
    before = None
    for one in dispatched:
        check()
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def perplexity(nll: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """exp of the mean −log p per real target piece, end mark included, for each lane: independent of the batching."""
    return np.exp(nll.sum(-1) / pieces.sum())


def translate(search, states, vocabulary: Vocabulary, sources: list[np.ndarray], rows: int, length: int,
              lanes: tuple[int, ...] = (0,), check: Callable[[], None] = lambda: None) -> list[list[list[Hypothesis]]]:
    """For each of `lanes` the best hypotheses of each source (ids without marks), the best first.

    An empty source has an empty one. `search(states, source, lengths)` is a compiled `search` of a population; batches
    are `rows` sentences of `length` pieces. `check()` is called between batches; what it raises ends this.
    """
    worth = [i for i, source in enumerate(sources) if len(source)]
    nothing = [np.zeros(0, np.int32)] * len(worth)
    batches = padded(Encoded([sources[i] for i in worth], nothing), rows, length) if worth else ()
    found = ((indices, search(states, batch.source, (batch.source_segments > 0).sum(-1))) for indices, batch in batches)
    hypotheses = [[[Hypothesis(0.0, "")] for _ in sources] for _ in lanes]
    for indices, results in _one_ahead(found, check):
        pieces, scores = map(np.asarray, results)
        for of_lane, lane in zip(hypotheses, lanes, strict=True):
            for i, ids, own in zip(indices, pieces[lane], scores[lane], strict=False):
                there = own > -np.inf  # a sentence of few pieces may have fewer translations than were asked for
                texts = vocabulary.decode(ids[there])
                # Of a model without numbers there is none.
                of_lane[worth[i]] = [Hypothesis(float(s), t) for s, t in zip(own[there], texts, strict=True)] or [
                    Hypothesis(-math.inf, "")]
    return hypotheses


def search(program: trial.Program, how: Search, prefix: tuple[int, ...], state: trial.State, source, lengths):
    """Pieces (B, n_best, T) and scores (B, n_best) of translations that begin with `prefix`, for sources (B, N)."""
    variables = dict(params=state.params, positions=state.positions)
    begun = jnp.broadcast_to(jnp.asarray(prefix, jnp.int32)[None], (len(source), len(prefix)))
    found = beam_search(trial.model(program), variables, source, lengths, beam=how.beam, most=how.most, bos=BOS,
                        eos=EOS, alpha=how.alpha, limits=lengths + how.extra, n_best=how.n_best,
                        prefix=(begun, jnp.full(len(source), len(prefix))) if prefix else None)
    return found.pieces, found.scores


def attention_weights(program: trial.Program, state: trial.State, source, target, lengths):
    """Weights (B, layers, h, queries, keys) of the encoder, the decoder and between them, as far as there is attention,
    for rows of ids."""
    variables = dict(params=state.params, positions=state.positions)
    places = [jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape) for ids in (source, target)]
    seen = Mask.padding(lengths)
    _, kept = trial.call(trial.model(program).apply, program, variables, source, target, places,
                         (seen, Mask.causal(), seen), mutable=["weights"])

    found, kinds = kept.get("weights", {}), {}
    for kind, side, name in (("encoder", "encoder", "self_attention"), ("decoder", "decoder", "self_attention"),
                             ("cross", "decoder", "cross_attention")):
        layers = [found.get(f"{side}_{i}", {}) for i in range(program.shape.N)]
        if layers := [layer[name]["weights"] for layer in (*layers, found) if name in layer]:
            kinds[kind] = jnp.stack(layers, axis=1)
    return kinds


def examples(weights, state: trial.State, vocabulary: Vocabulary, test: Heldout, translations: list[str], count: int,
             length: int):
    """For `count` test sentences of different lengths: texts, pieces and where attention looks.

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
    (order, batch), = padded(pairs, len(chosen), length)
    lengths = (batch.source_segments > 0).sum(-1), (batch.target_segments > 0).sum(-1)
    found = jax.device_get(weights(state, batch.source, batch.target_in, lengths[0]))
    for row, place in enumerate(order):
        n, m = (int(side[row]) for side in lengths)
        cut = dict(encoder=(n, n), decoder=(m, m), cross=(m, n))
        arrays |= {f"{row}/{kind}": found[kind][row, :, :, :q, :k].astype(np.float16)
                   for kind, (q, k) in cut.items() if kind in found}
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
