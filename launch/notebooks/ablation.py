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
# # An ablation on the devices at hand
#
# Which part of a Transformer matters, and by how much more than chance? A sweep trains
# each variant with several seeds, on one TPU core or eight, a GPU or a CPU, and its
# report says which differences are real. The corpus is made on the spot from CLDR:
# phrases such as "3 days ago" in two languages. Nothing is downloaded.

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
# ## What is asked
#
# A sweep is a generator of points in a config file. This one writes its own: narrow
# keys, and no positions, around the quick config. `--dry_run` checks every point and
# estimates what all will take.

# %%
from pathlib import Path

from launch.notebooks.environment import command, report_frame

config = """
from experiments.configs import quick


def get_config():
    config = quick.get_config()
    config.training.update(steps=STEPS, evaluate_every=STEPS, save_every=SAVE)
    config.training.schedule = "paper(warmup=WARMUP)"
    config.data.update(pairs=PAIRS, heldout=HELDOUT)
    return config


def sweep_question():
    yield {"label": "base"}
    yield {"label": "d_k = 4", "model.d_k": 4}
    yield {"label": "no positions", "model.positions": "none"}
"""
sizes = (
    dict(STEPS=50, WARMUP=25, SAVE=50, PAIRS=1000, HELDOUT=20)
    if SMALL
    else dict(STEPS=200, WARMUP=50, SAVE=200, PAIRS=20000, HELDOUT=200)
)
for name, value in sizes.items():
    config = config.replace(name, str(value))
folder = Path("runs/notebook")
folder.mkdir(parents=True, exist_ok=True)
(folder / "question.py").write_text(config)
SEEDS = 1 if SMALL else 4

sweep = [
    "launch.sweep",
    f"--config={folder}/question.py",
    "--sweep=question",
    f"--seeds={SEEDS}",
]
command(*sweep, "--dry_run")

# %% [markdown]
# ## The runs
#
# How the trials are spread, as processes or side by side on one device, is chosen for the
# machine, unless `LANES` says how many train side by side: a multiple of the devices, over
# which pmap spreads them. Stop this cell and run it again: it goes on where it was.

# %%
LANES = 0
workdir = folder / ("small" if SMALL else "runs")
command(*sweep, f"--lanes={LANES}", f"--workdir={workdir}")

# %% [markdown]
# ## The picture
#
# Each dot is a trial: how far a row's seeds lie apart, beside how far the rows do.

# %%
import matplotlib.pyplot as plt

from experiments.report.trial_files import read_results

trials = [trial for trial in read_results(workdir).trials if trial.result]
figure, axes = plt.subplots(figsize=(7, 2.4))
axes.plot(
    [trial.result["perplexity"] for trial in trials],
    [trial.label for trial in trials],
    "o",
    alpha=0.7,
)
axes.invert_yaxis()
axes.set(xlabel="perplexity on the validation set")
axes.grid(axis="y", alpha=0.3)

# %% [markdown]
# ## The report
#
# The table with each row's difference to base, training curves, and the attention of
# every head: choose layer and head, and point at a cell. (A stored notebook has a picture
# of it; it is `report.html` in the sweep's folder.)

# %%
report_frame(workdir)

# %% [markdown]
# ## Ask on
#
# One metric's differences to the base, a line a row, with its interval drawn. More seeds,
# or more points in `question.py`, and the same command trains only what is new;
# `experiments/configs/` has the tables of the paper.

# %%
command("launch.report", f"--workdir={workdir}", "--differences=exact_match", "--sort")
