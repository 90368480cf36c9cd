"""Translates with CTranslate2, in float32."""

import functools
import os
import tempfile

import ctranslate2
import numpy as np
from ctranslate2.specs import Activation, TransformerSpec

from experiments.data.vocabulary import BOS, EOS, PAD, UNK
from launch.bench.decoding import case as searches
from launch.bench.decoding.case import Case
from launch.bench.harness.libraries import Adapter, Program

_MARKS = {PAD: "<blank>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


def search(case: Case, threads: int | None = None) -> Program:
    """Builds the model and its sentences of words; threads are the benchmark's unless given."""
    # CTranslate2 reads models from files only; it has them in memory afterwards.
    with tempfile.TemporaryDirectory() as directory:
        _spec(case).save(directory)
        model = ctranslate2.Translator(
            directory,
            device="cpu",
            compute_type="float32",
            # One batch at a time, with all threads, as the others work.
            inter_threads=1,
            intra_threads=threads or int(os.environ["NPROC"]),
        )
    words = _words(case)
    ids = {word: i for i, word in enumerate(words)}
    sources = [_looked_up(words, row) for row in searches.sources(case)]

    def run():
        return model.translate_batch(
            sources,
            beam_size=case.beam,
            max_decoding_length=case.tokens,
            length_penalty=searches.ALPHA,
        )

    def sample():
        best = [result.hypotheses[0] for result in run()]
        return {"tokens": np.array([_looked_up(ids, row) for row in best])}

    return Program(run, sample)


def _looked_up(table, keys):
    return [table[key] for key in keys]


def _words(case):
    # CTranslate2 takes words and looks up their ids, so each id is a word.
    return [_MARKS.get(i, str(i)) for i in range(case.vocabulary)]


def _spec(case):
    w = searches.weights(case)
    spec = TransformerSpec.from_config(
        (case.N, case.N), case.h, pre_norm=False, activation=Activation.RELU
    )
    spec.register_source_vocabulary(_words(case))
    spec.register_target_vocabulary(_words(case))
    _fill_side(spec.encoder, spec.encoder.embeddings[0], "encoder", case, w)
    _fill_side(spec.decoder, spec.decoder.embeddings, "decoder", case, w)
    # The paper's model has one matrix for both embeddings and the output.
    spec.decoder.projection.weight = w["embedding"]
    spec.validate()
    return spec


def _fill_side(side, embeddings, name, case, w):
    embeddings.weight = w["embedding"]
    side.scale_embeddings = True
    side.position_encodings.encodings = searches.positions(case)
    for i, layer in enumerate(side.layer):
        _fill_layer(layer, w[f"{name}_{i}"])


def _fill_layer(layer, w):
    self_attention = w["self_attention"]
    # CTranslate2 has one matrix for all projections of one input.
    joined = [["w_q", "w_k", "w_v"]]
    _fill_attention(layer.self_attention, w["self_norm"], self_attention, joined)
    if "cross_attention" in w:
        cross_attention = w["cross_attention"]
        joined = [["w_q"], ["w_k", "w_v"]]
        _fill_attention(layer.attention, w["cross_norm"], cross_attention, joined)
    _fill_linear(layer.ffn.linear_0, w["feed_forward"]["w_1"])
    _fill_linear(layer.ffn.linear_1, w["feed_forward"]["w_2"])
    _fill_norm(layer.ffn.layer_norm, w["feed_forward_norm"])


def _fill_linear(linear, w):
    # Flax has (inputs, outputs), CTranslate2 the transpose.
    linear.weight = np.ascontiguousarray(w["kernel"].T)
    linear.bias = w["bias"]


def _fill_attention(attention, norm, w, joined):
    """Fills one attention.

    `joined` names, for each matrix before the last, the projections that stand in it.
    """
    *linears, last = attention.linear
    for linear, names in zip(linears, joined, strict=True):
        matrices = [searches.into_heads(w[name]) for name in names]
        linear.weight = np.concatenate(matrices)
    # CTranslate2 writes the bytes of an array as they lie in memory.
    last.weight = np.ascontiguousarray(searches.out_of_heads(w["w_o"]))
    _fill_norm(attention.layer_norm, norm)


def _fill_norm(layer_norm, w):
    layer_norm.gamma = w["norm"]["scale"]
    layer_norm.beta = w["norm"]["bias"]


ADAPTERS = {
    "ctranslate2": Adapter(search),
    "ctranslate2:one-thread": Adapter(functools.partial(search, threads=1)),
}
