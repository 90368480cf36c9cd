"""Makes workdirs as a sweep leaves them, without training: plausible numbers from a seed."""

import json
import math
import re
from pathlib import Path

import numpy as np

from attn import sinusoidal
from experiments import settings
from experiments.evaluation.metrics import (
    BLEU,
    CHRF,
    CHRF_ORDERS,
    EXACT_MATCH,
    PERPLEXITY,
)

REPORTED = (PERPLEXITY, BLEU, CHRF, EXACT_MATCH)
"""The metrics that these trials have, for tests of reports of fixed columns."""

PAIRS = (
    ("3 days ago, at half past nine", "vor 3 Tagen, um halb zehn"),
    ("Thursday, 12 March 2026", "Donnerstag, 12. März 2026"),
    ("1,250.50 US dollars and 40 cents", "1.250,50 US-Dollar und 40 Cent"),
)

QUICK = {
    "model": {"N": 2, "d_model": 64, "d_ff": 256, "h": 4, "d_k": 16, "d_v": 16},
    "training": {"steps": 750, "schedule": "paper(warmup=200)", "clip": 2.0},
}

# A few rows of the paper's Table 3 by their labels, at the quick sweep's size.
TABLE_3 = {
    "base": {},
    "(A) h=1": {"model.h": 1, "model.d_k": 64, "model.d_v": 64},
    "(B) d_k=16": {"model.d_k": 4},
    "(E) learned positions": {"model.positions": "learned"},
    "big": {"model.d_model": 128, "model.d_ff": 512},
}

DIVERGED = {
    "status": "diverged",
    "error": "diverged: loss is NaN at step 75",
    "step": 75,
}


def finished(perplexity=1.25, bleu=90.0, chrf=95.0, exact_match=0.9, **more):
    """A result.json, whole."""
    scores = dict(perplexity=perplexity, bleu=bleu, chrf=chrf, exact_match=exact_match)
    result = dict(status="finished", parameters=241_664, steps=750, **scores)
    result |= dict(test_sentences=500, seconds=21.5, tokens_per_second=31000.0)
    return result | dict(real_tokens=0.95) | more


def sweep(
    workdir,
    trials,
    base=None,
    config="experiments/configs/quick.py",
    sweeps=("table", "seed"),
) -> Path:
    """sweep.json for `trials`, [(point, result or None, options of `trial`)], and a
    directory for each.

    A point may carry its row's "label". A trial whose options are None has no directory yet.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    base = base or settings.resolve(QUICK).to_dict()
    listed = []
    for i, (row, result, options) in enumerate(trials):
        point = {key: value for key, value in row.items() if key != "label"}
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in point.items()]
        of_trial = dict(name=" ".join(parts) or "base", point=point)
        directory = f"trials/{i:02d}"
        label = row.get("label", "")
        listed.append(dict(of_trial, directory=directory, label=label))
        if options is not None:
            resolved = settings.resolve(base, point).to_dict()
            trial(workdir / directory, resolved, result, **of_trial | options)
    text = {"config": config, "base": base, "sweeps": list(sweeps), "trials": listed}
    (workdir / "sweep.json").write_text(json.dumps(text), encoding="utf-8")
    return workdir


def trial(
    directory,
    config,
    result,
    name="base",
    point=None,
    pairs=(),
    logged=(25, 50),
    sentences=None,
    started="2026-11-21T09:00:00",
):
    """One trial's files: attention for each sentence pair of `pairs`, metrics at each
    step of `logged`.

    `sentences` are the arrays of sentences.npz.
    """
    directory.mkdir(parents=True, exist_ok=True)
    digest = settings.digest(config)
    record = dict(name=name, point=point or {}, settings_digest=digest, started=started)
    record |= dict(versions={"jax": "0.10.2", "flax": "0.12.8"}, python="3.11.7")
    record |= dict(git="0a1b2c3d", device="cpu", devices=1, corpus="c0ffee12")
    counts = {"train": 40000, "dropped": 12}
    record |= dict(vocabulary="5eed5eed", corpus_counts=counts)
    files = dict(config=config, record=record, **{"result": result} if result else {})
    for file, value in files.items():
        (directory / f"{file}.json").write_text(json.dumps(value), encoding="utf-8")
    rng = np.random.default_rng(int(digest, 16))
    lines = [json.dumps(line) + "\n" for line in _metrics(rng, logged)]
    (directory / "metrics.jsonl").write_text("".join(lines))
    if pairs:
        _examples(rng, directory, config["model"], pairs)
    if sentences:
        np.savez_compressed(directory / "sentences.npz", **sentences)
        if "test_exact" in sentences:
            _texts(directory, sentences)


def table_3(workdir, seeds=3, count=200) -> Path:
    """Rows named as the paper's: h=1 is worse, big better, learned positions alike; one
    seed of d_k=16 diverged.

    Its validation and test sets have `count` sentences.
    """
    rng = np.random.default_rng(1)
    trials = []
    skills = (0.0, -0.6, -0.1, 0.0, 0.6)
    for (label, row), skill in zip(TABLE_3.items(), skills, strict=True):
        for seed in range(seeds):
            kept = sentences(rng, count, skill + rng.normal(0, 0.02))
            result = finished(
                **scores(kept),
                parameters=2**20 if label == "big" else 2**18,
                bleu_detokenized=25.0,
            )
            diverged = label.startswith("(B)") and seed == seeds - 1
            options = {"pairs": PAIRS[:1], "logged": range(25, 126, 25)}
            options |= {} if diverged else {"sentences": kept}
            point = {"label": label, **row, "seed": seed}
            trials.append((point, DIVERGED if diverged else result, options))
    return sweep(workdir, trials, sweeps=("table_3", "seed"))


def sentences(rng, count, skill):
    """The arrays of sentences.npz: the same `count` sentences at every call, better
    translated by more `skill`."""
    shared = np.random.default_rng(count)
    lengths, source = shared.integers(3, 30, count), shared.integers(3, 40, count)
    hard = shared.gamma(4, 0.4, count)
    total = np.maximum(lengths[:, None] - np.arange(4), 0)
    right = rng.binomial(
        total, 1 / (1 + np.exp(hard[:, None] - 1.5 - 0.3 * skill + 0.5 * np.arange(4)))
    )
    nll = lengths * (hard * np.exp(-0.3 * skill) + rng.normal(0, 0.05, count))
    return {
        "validation_nll": nll.astype(np.float32),
        "validation_tokens": lengths.astype(np.int32),
        "validation_source": source.astype(np.int32),
        "test_bleu": np.column_stack([right, total, lengths, lengths]).astype(np.int32),
        "test_exact": rng.random(count) < 0.3 + 0.1 * skill,
        "test_source": source.astype(np.int32),
        "test_chrf": _characters(right, total).astype(np.int32),
    }


def scores(kept):
    """Computes what result.json says of the sentences that `sentences` made."""
    values = {}
    for metric in REPORTED:
        statistics = metric.statistics(kept)
        sums = statistics.sum(0, dtype=float)
        values[metric.key] = float(metric.of_sums(sums, len(statistics)))
    return values


def tokens(text):
    """Tokens of at most four letters, U+2581 before a word."""
    return [
        token
        for word in re.findall(r"\S+", text)
        for token in re.findall(r"\u2581?\w{1,4}|\W", "\u2581" + word)
    ]


def _characters(right, total):
    """Makes chrF's counts from BLEU's: as if each word had five characters, right or wrong."""
    share = right[:, :1] / np.maximum(total[:, :1], 1)
    made = np.maximum(5 * total[:, :1] - np.arange(CHRF_ORDERS), 0)
    matched = np.rint(made * share)
    return np.stack([made, made, matched], -1).reshape(len(made), -1)


def _metrics(rng, logged):
    speed, floor = rng.uniform(60, 110), rng.uniform(1.02, 1.12)
    for step in logged:
        loss = 1.0 + 5.6 * math.exp(-step / speed) + rng.normal(0, 0.03)
        line = dict(step=step, split="train", loss=loss, perplexity=math.exp(loss))
        line |= dict(learning_rate=1e-3, grad_norm=1.2, tokens_per_second=31000.0)
        yield line | dict(seconds=step / 35)
        if step % 125 == 0 or step == logged[-1]:
            perplexity = floor + 90 * math.exp(-step / speed)
            line = dict(step=step, split="validation", loss=1.0, perplexity=perplexity)
            line |= dict(bleu=20.0, chrf=40.0, exact_match=0.5, seconds=step / 35)
            yield line


def _texts(directory, sentences):
    """The test set with translations, which are right where the sentence is."""
    exact = sentences["test_exact"]
    sources = [f"source {i} of {len(exact)}" for i in range(len(exact))]
    references = [f"Satz {i} von {len(exact)}" for i in range(len(exact))]
    ours = []
    for text, right in zip(references, exact, strict=True):
        ours.append(text if right else text.replace("von", "vor"))
    texts = dict(sources=sources, references=references, translations=ours)
    for name, lines in texts.items():
        (directory / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def _examples(rng, directory, model, pairs):
    arrays = {}
    texts = []
    heads = (model["N"], model["h"])
    for i, (source, target) in enumerate(pairs):
        queries, keys = ["<s>", *tokens(target)], [*tokens(source), "</s>"]
        n, m = len(queries), len(keys)
        arrays[f"{i}/encoder"] = _attention(rng, heads, m, m)
        arrays[f"{i}/decoder"] = _attention(rng, heads, n, n, causal=True)
        arrays[f"{i}/cross"] = _attention(rng, heads, n, m)
        text = dict(source=source, reference=target, translation=target)
        texts.append(text | dict(source_tokens=keys, target_tokens=queries))
    if model["positions"] == "sinusoidal":
        arrays["positions"] = sinusoidal(48, model["d_model"])
    elif model["positions"] == "learned":
        table = rng.normal(0, 0.1, (48, model["d_model"]))
        arrays["positions"] = table.astype(np.float32)
    np.savez(directory / "examples.npz", **arrays)
    (directory / "examples.json").write_text(json.dumps(texts), encoding="utf-8")


def _attention(rng, heads, n, m, causal=False):
    """A band about a diagonal that each head shifts, sharp or wide, plus noise; rows sum to 1."""
    row, column = np.arange(n)[:, None], np.arange(m)[None, :]
    shift = rng.integers(-2, 3, (*heads, 1, 1))
    width = rng.uniform(0.3, 3, (*heads, 1, 1))
    far = np.abs(row * m / n - column + shift) / width
    logits = rng.normal(0, 0.7, (*heads, n, m)) - far
    logits = np.where(column <= row, logits, -np.inf) if causal else logits
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float16)
