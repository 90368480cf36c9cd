"""Workdirs as a sweep leaves them, without training anything: plausible numbers, drawn from a seed."""

import json
import math
import re
from pathlib import Path

import numpy as np

from experiments import settings

PAIRS = (("3 days ago, at half past nine", "vor 3 Tagen, um halb zehn"),
         ("Thursday, 12 March 2026", "Donnerstag, 12. März 2026"),
         ("1,250.50 US dollars and 40 cents", "1.250,50 US-Dollar und 40 Cent"))

QUICK = {"model": {"N": 2, "d_model": 64, "d_ff": 256, "h": 4, "d_k": 16, "d_v": 16},
         "training": {"steps": 750, "warmup": 200}}

ROWS = ({}, {"model.h": 1, "model.d_k": 64, "model.d_v": 64}, {"model.h": 2, "model.d_k": 32, "model.d_v": 32},
        {"model.h": 8, "model.d_k": 8, "model.d_v": 8}, {"model.d_k": 4}, {"model.d_k": 32},
        {"model.positions": "learned"}, {"model.positions": "none"})


def finished(perplexity=1.25, bleu=90.0, chrf=95.0, exact_match=0.9, **more):
    """A result.json, whole."""
    return {"status": "finished", "parameters": 241_664, "steps": 750, "perplexity": perplexity, "bleu": bleu,
            "chrf": chrf, "exact_match": exact_match, "test_sentences": 500, "seconds": 21.5,
            "tokens_per_second": 31000.0, "real_tokens": 0.95, **more}


def sweep(workdir, trials, base=None, config="experiments/configs/quick.py", sweeps=("table", "seed")) -> Path:
    """sweep.json for `trials`, [(point, result or None, options of `trial`)], and a directory for each.

    A trial whose options are None has no directory yet.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    base, listed = base or settings.resolve(QUICK).to_dict(), []
    for i, (point, result, options) in enumerate(trials):
        name = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items()) or "base"
        directory = f"trials/{i:02d}"
        listed.append({"name": name, "directory": directory, "point": point})
        if options is not None:
            trial(workdir / directory, settings.resolve(base, point).to_dict(), result,
                  **{"name": name, "point": point} | options)
    text = {"config": config, "base": base, "sweeps": list(sweeps), "trials": listed}
    (workdir / "sweep.json").write_text(json.dumps(text), encoding="utf-8")
    return workdir


def trial(directory, config, result, name="base", point=None, pairs=(), logged=(25, 50), started="2026-11-21T09:00:00"):
    """One trial's files: attention for each sentence pair of `pairs`, metrics at each step of `logged`."""
    directory.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "point": point or {}, "settings_digest": settings.digest(config), "started": started,
              "versions": {"jax": "0.10.2", "flax": "0.12.8"}, "python": "3.11.7", "git": "0a1b2c3d", "device": "cpu",
              "devices": 1, "corpus": "c0ffee12", "vocabulary": "5eed5eed",
              "corpus_counts": {"train": 40000, "dropped": 12}}
    files = {"config": config, "record": record} | ({"result": result} if result else {})
    for file, value in files.items():
        (directory / f"{file}.json").write_text(json.dumps(value), encoding="utf-8")
    rng = np.random.default_rng(int(record["settings_digest"], 16))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _metrics(rng, logged)))
    if pairs:
        _examples(rng, directory, config["model"], pairs)


def plausible(workdir, seeds=2, rows=ROWS) -> Path:
    """A whole sweep as `make sweep` might leave it, its last row with a failed and an unfinished trial."""
    rng, trials = np.random.default_rng(0), []
    for i, row in enumerate(rows):
        for seed in range(seeds):
            exact = float(np.clip((0.35 if "none" in row.values() else 0.93) + rng.normal(0, 0.012), 0, 1))
            result = finished(1.0 + 0.5 * (1 - exact) + 0.05, 60 + 40 * exact, 70 + 30 * exact, exact,
                              parameters=241_664 + 8192 * i)
            trials.append(({**row, "seed": seed}, result, {"pairs": PAIRS, "logged": range(25, 751, 25)}))
    point = trials[-1][0]
    trials.append((dict(point, seed=seeds), {"status": "failed", "error": "FloatingPointError: loss is NaN at step 125",
                                             "traceback": "..."}, {"logged": range(25, 126, 25)}))
    trials.append((dict(point, seed=seeds + 1), None, {"logged": range(25, 301, 25)}))
    trials.append((dict(point, seed=seeds + 2), None, None))
    return sweep(workdir, trials)


def pieces(text):
    """Word pieces of at most four letters, U+2581 before a word."""
    return [piece for word in re.findall(r"\S+", text)
            for piece in re.findall(r"\u2581?\w{1,4}|\W", "\u2581" + word)]


def _metrics(rng, logged):
    speed, floor = rng.uniform(60, 110), rng.uniform(1.02, 1.12)
    for step in logged:
        loss = 1.0 + 5.6 * math.exp(-step / speed) + rng.normal(0, 0.03)
        yield {"step": step, "split": "train", "loss": loss, "perplexity": math.exp(loss), "learning_rate": 1e-3,
               "grad_norm": 1.2, "tokens_per_second": 31000.0, "seconds": step / 35}
        if step % 125 == 0 or step == logged[-1]:
            yield {"step": step, "split": "validation", "loss": 1.0, "perplexity": floor + 90 * math.exp(-step / speed),
                   "bleu": 20.0, "chrf": 40.0, "exact_match": 0.5, "seconds": step / 35}


def _examples(rng, directory, model, pairs):
    arrays, texts, heads = {}, [], (model["N"], model["h"])
    for i, (source, target) in enumerate(pairs):
        queries, keys = ["<s>", *pieces(target)], [*pieces(source), "</s>"]
        arrays[f"{i}/encoder"] = _attention(rng, heads, len(keys), len(keys))
        arrays[f"{i}/decoder"] = _attention(rng, heads, len(queries), len(queries), causal=True)
        arrays[f"{i}/cross"] = _attention(rng, heads, len(queries), len(keys))
        texts.append({"source": source, "reference": target, "translation": target, "source_pieces": keys,
                      "target_pieces": queries})
    if model["positions"] == "sinusoidal":
        angle = np.arange(48)[:, None] / 10_000 ** (np.arange(0, model["d_model"], 2) / model["d_model"])
        arrays["positions"] = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(48, -1).astype(np.float32)
    elif model["positions"] == "learned":
        arrays["positions"] = rng.normal(0, 0.1, (48, model["d_model"])).astype(np.float32)
    np.savez(directory / "examples.npz", **arrays)
    (directory / "examples.json").write_text(json.dumps(texts), encoding="utf-8")


def _attention(rng, heads, n, m, causal=False):
    """A band about a diagonal that each head shifts, sharp or wide, plus noise; rows sum to 1."""
    row, column = np.arange(n)[:, None], np.arange(m)[None, :]
    shift, width = rng.integers(-2, 3, (*heads, 1, 1)), rng.uniform(0.3, 3, (*heads, 1, 1))
    logits = -np.abs(row * m / n - column + shift) / width + rng.normal(0, 0.7, (*heads, n, m))
    logits = np.where(column <= row, logits, -np.inf) if causal else logits
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float16)
