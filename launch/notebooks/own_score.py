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
# library's contract, then trained beside the scaled dot product: is the difference more
# than chance, and what does its temperature do?

# %% [markdown]
# Where attn is not installed, as in Colab, `ATTN` is a wheel: one that was uploaded here
# (`make wheel` leaves it in `dist/`), its path or its address; or the folder of a clone.
# JAX stays as the runtime has it. `DEVICE = "tpu"` or `"gpu"` tells where there is none.

# %% tags=["parameters"]
ATTN = "attn-*.whl"
DEVICE = "any"
SMALL = False  # a run of seconds, to see whether all works

# %%
from importlib.util import find_spec

if not find_spec("launch"):
    get_ipython().run_line_magic("pip", f"install --quiet --no-deps {ATTN}")

# %%
from launch.notebooks.environment import start

devices = start(DEVICE)

# %% [markdown]
# ## The score
#
# $\mathrm{score}(q, k) = \tau \cos(q, k)$, with a temperature $\tau$ that each head learns. A
# score is a small class in a file of its own; its fields are parameters, and gradients
# reach them through every kernel. Change it, or write another.

# %%
from pathlib import Path

from launch.notebooks.environment import command, report_frame

folder = Path("runs/notebook/own_score")
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


@attn.score
class PlainCosine:
    def __call__(self, q, k):
        return unit(q) @ unit(k).T


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
# Three scores, each with four seeds: the scaled dot product, the cosine, and a cosine
# without its temperature, whose weights can hardly differ. A sweep is a generator in a
# config file.

# %%
sizes = (
    dict(STEPS=50, WARMUP=25, PAIRS=1000, HELDOUT=20)
    if SMALL
    else dict(STEPS=200, WARMUP=50, PAIRS=20000, HELDOUT=200)
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
    yield {"label": "scaled dot"}
    yield {"label": "cosine", "model.score": "MY_FILE:Cosine"}
    yield {"label": "plain cosine", "model.score": "MY_FILE:PlainCosine"}
"""
for name, value in {**sizes, "MY_FILE": folder / "my_score.py"}.items():
    config = config.replace(name, str(value))
(folder / "question.py").write_text(config)
SEEDS = 1 if SMALL else 4
workdir = folder / ("small" if SMALL else "runs")
command(
    "launch.sweep",
    f"--config={folder}/question.py",
    "--sweep=score",
    f"--seeds={SEEDS}",
    "--base=scaled dot",
    f"--workdir={workdir}",
)

# %% [markdown]
# ## The verdict
#
# The table's last column compares each row with the scaled dot product. "Undecided" says
# how many seeds would tell. In the picture each dot is a trial.

# %%
import matplotlib.pyplot as plt

from experiments.report.trial_files import read_results

trials = [trial for trial in read_results(workdir).trials if trial.result]
figure, axes = plt.subplots(figsize=(6, 2.2))
for trial in trials:
    axes.plot(trial.result["perplexity"], trial.label, "o", color="tab:blue", alpha=0.7)
axes.invert_yaxis()
axes.set(xlabel="perplexity on the validation set")
axes.grid(axis="y", alpha=0.3)
plt.show()

# %%
report_frame(workdir)

# %% [markdown]
# More seeds (`SEEDS`) and longer training (`STEPS`) make the answer firmer; the same
# command trains only what is new. `CONTRIBUTING.md` has the same for positions, metrics
# and corpora.
