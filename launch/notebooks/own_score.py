# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own score
#
# A score says how well a query fits a key. Here is one in eight lines, held to the
# library's contract, then trained beside the scaled dot product at several $d_k$: is the
# difference more than chance, and does it depend on $d_k$?

# %% [markdown]
# The first cell finds attn: in a checkout it is there; elsewhere, as in Colab, upload the
# wheel that `make wheel` leaves in `dist/` (the folder symbol on the left), and the cell
# installs it. JAX stays as the runtime has it. Set `DEVICE` to `"tpu"` or `"gpu"` to be
# told where there is none.

# %% tags=["parameters"]
DEVICE = "any"
SMALL = False  # a run of seconds, to see whether all works

# %%
import os
import pathlib
import subprocess
import sys

above = [pathlib.Path.cwd(), *pathlib.Path.cwd().parents]
checkouts = [folder for folder in above if (folder / "launch" / "notebooks").is_dir()]
archives = sorted(
    [*pathlib.Path().glob("attn-*.whl"), *pathlib.Path().glob("attn-*.tar.gz")]
)
if checkouts:
    os.chdir(checkouts[0])
    sys.path.insert(0, str(checkouts[0]))
elif archives:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, str(archives[-1])], check=True)
    if subprocess.run([sys.executable, "-m", "launch.notebooks.install"]).returncode:
        raise SystemExit("not ready yet: the line above says what to do")
from launch.notebooks.environment import start

devices = start(DEVICE)

# %% [markdown]
# ## The score
#
# $\mathrm{score}(q, k) = \tau \cos(q, k)$, with a temperature $\tau$ that each head learns. A
# score is a small class in a file of its own; its fields are parameters, and gradients
# reach them through every kernel. Change it, or write another.

# %%
from launch.notebooks.environment import command, report_frame

folder = pathlib.Path("runs/notebook/own_score")
folder.mkdir(parents=True, exist_ok=True)
(folder / "my_score.py").write_text("""
from typing import Any

import jax.numpy as jnp

import attn


@attn.score
class Cosine:
    temperature: Any

    @classmethod
    def init(cls, key, h, d_q, d_k):
        return cls(jnp.full(h, d_k**0.5))

    def __call__(self, q, k):
        return self.temperature * (unit(q) @ unit(k).T)


def unit(x):
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
""")
SCORE = f"{folder}/my_score.py:Cosine"

# %% [markdown]
# `launch.check` holds it to the contract: gradients, every kernel, masks, precision, the
# cache of decoding. One of its lines is of "pallas", the kernel for TPUs and Hopper into
# whose tiles the score above is traced, with its gradient (`implementation="pallas"`).

# %%
command("launch.check", SCORE)

# %% [markdown]
# ## The sweep
#
# Every score with every $d_k$, each with two seeds. A sweep is a generator in a config
# file.

# %%
sizes = (
    dict(STEPS=50, WARMUP=25, PAIRS=1000, HELDOUT=20, WIDTHS=(2, 16))
    if SMALL
    else dict(STEPS=150, WARMUP=50, PAIRS=20000, HELDOUT=200, WIDTHS=(2, 4, 16))
)
config = """
from experiments.configs import quick


def get_config():
    config = quick.get_config()
    config.training.update(steps=STEPS, evaluate_every=STEPS, save_every=STEPS)
    config.training.schedule = "paper(warmup=WARMUP)"
    config.data.update(pairs=PAIRS, heldout=HELDOUT)
    return config


def sweep_score():
    for name, score in (("scaled dot", "scaled_dot"), ("cosine", "MY_SCORE")):
        for d_k in WIDTHS:
            label = f"{name}, d_k={d_k}"
            yield {"label": label, "model.score": score, "model.d_k": d_k}
"""
for name, value in {**sizes, "MY_SCORE": SCORE}.items():
    config = config.replace(name, str(value))
(folder / "question.py").write_text(config)
SEEDS = 1 if SMALL else 2
workdir = folder / ("small" if SMALL else "runs")
command(
    "launch.sweep",
    f"--config={folder}/question.py",
    "--sweep=score",
    f"--seeds={SEEDS}",
    f"--workdir={workdir}",
)

# %% [markdown]
# ## The verdict
#
# The table's last column compares each row with the base, the scaled dot product at
# $d_k$ = 16. "Undecided" says how many seeds would tell. The picture has the rest of the
# question: a line for each score, a dot for each trial.

# %%
import matplotlib.pyplot as plt

from experiments.report.trial_files import read_results

results = read_results(workdir)
figure, axes = plt.subplots(figsize=(6, 3.6))
for score in ("scaled_dot", SCORE):
    dots = [
        (trial.point["model.d_k"], trial.result["perplexity"])
        for trial in results.trials
        if trial.result and trial.point["model.score"] == score
    ]
    widths = sorted({d_k for d_k, _ in dots})
    means = []
    for width in widths:
        values = [perplexity for d_k, perplexity in dots if d_k == width]
        means.append(sum(values) / len(values))
    (line,) = axes.plot(widths, means, label=score.rpartition(":")[2])
    axes.plot(*zip(*dots), "o", color=line.get_color(), alpha=0.6)
axes.set(xlabel="d_k", ylabel="perplexity on the validation set")
axes.set_xscale("log", base=2)
axes.set_xticks(sizes["WIDTHS"], sizes["WIDTHS"])
axes.legend()
plt.show()

# %%
report_frame(workdir)

# %% [markdown]
# More seeds (`SEEDS`) and longer training (`STEPS`) make the answer firmer; the same
# command trains only what is new. `CONTRIBUTING.md` has the same for positions, metrics
# and corpora.
