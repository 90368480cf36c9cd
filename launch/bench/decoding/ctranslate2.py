"""Translates with CTranslate2, in float32."""

import functools
import os
import tempfile

import ctranslate2
import numpy as np

from experiments.export.ctranslate2 import MARKS, ctranslate2_spec
from launch.bench.decoding import case as searches
from launch.bench.decoding.attn import transformer
from launch.bench.decoding.case import Case
from launch.bench.harness.libraries import Adapter, Program


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
    return [MARKS.get(i, str(i)) for i in range(case.vocabulary)]


def _spec(case):
    table = searches.positions(case)
    described = transformer(case).config
    tables = table, table
    spec = ctranslate2_spec(described, searches.weights(case), tables, _words(case))
    # The others' sentences have no end mark.
    spec.config.add_source_eos = False
    spec.validate()
    return spec


ADAPTERS = {
    "ctranslate2": Adapter(search),
    "ctranslate2:one-thread": Adapter(functools.partial(search, threads=1)),
}
