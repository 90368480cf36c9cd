"""Translation with CTranslate2, in float32."""

import os
import tempfile

import ctranslate2
import numpy as np
from ctranslate2.specs import Activation, TransformerSpec

from experiments.tokens import BOS, EOS, PAD, UNK
from launch.bench import searches
from launch.bench.searches import Case
from launch.bench.timing import Adapter, Program

_MARKS = {PAD: "<blank>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


def search(case: Case) -> Program:
    with tempfile.TemporaryDirectory() as directory:
        _spec(case).save(directory)
        model = ctranslate2.Translator(directory, device="cpu", compute_type="float32", inter_threads=1,
                                       intra_threads=int(os.environ["NPROC"]))
    words = _words(case)
    source = [[words[i] for i in row] for row in searches.sources(case)]
    ids = {word: i for i, word in enumerate(words)}

    def run():
        return model.translate_batch(source, beam_size=case.beam, max_decoding_length=case.pieces,
                                     length_penalty=searches.ALPHA)

    return Program(run, lambda: {"pieces": np.array([[ids[word] for word in one.hypotheses[0]] for one in run()])})


def _words(case):
    return [_MARKS.get(i, str(i)) for i in range(case.vocabulary)]


def _spec(case):
    w = searches.weights(case)
    spec = TransformerSpec.from_config((case.N, case.N), case.h, pre_norm=False, activation=Activation.RELU)
    spec.register_source_vocabulary(_words(case))
    spec.register_target_vocabulary(_words(case))
    for name, side, embeddings in (("encoder", spec.encoder, spec.encoder.embeddings[0]),
                                   ("decoder", spec.decoder, spec.decoder.embeddings)):
        embeddings.weight = w["embedding"]
        side.scale_embeddings = True
        side.position_encodings.encodings = searches.positions(case)
        for i, layer in enumerate(side.layer):
            _fill(layer, w[f"{name}_{i}"])
    spec.decoder.projection.weight = w["embedding"]
    spec.validate()
    return spec


def _fill(layer, w):
    _fill_attention(layer.self_attention, w["self_norm"], w["self_attention"], ["w_q", "w_k", "w_v"])
    if "cross_attention" in w:
        _fill_attention(layer.attention, w["cross_norm"], w["cross_attention"], ["w_q"], ["w_k", "w_v"])
    ff = w["feed_forward"]
    for linear, own in ((layer.ffn.linear_0, ff["w_1"]), (layer.ffn.linear_1, ff["w_2"])):
        linear.weight, linear.bias = np.ascontiguousarray(own["kernel"].T), own["bias"]
    _fill_norm(layer.ffn.layer_norm, w["feed_forward_norm"])


def _fill_attention(attention, norm, w, *joined):
    """`joined`: the projections that stand in one matrix, for each matrix before the last."""
    *linears, last = attention.linear
    for linear, names in zip(linears, joined, strict=True):
        linear.weight = np.concatenate([searches.into(w[name]) for name in names])
    last.weight = np.ascontiguousarray(searches.out_of(w["w_o"]))
    _fill_norm(attention.layer_norm, norm)


def _fill_norm(layer_norm, w):
    layer_norm.gamma, layer_norm.beta = w["norm"]["scale"], w["norm"]["bias"]


PEERS = {"ctranslate2": Adapter(search)}
