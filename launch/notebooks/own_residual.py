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
# # A variant of one's own that two layers share
#
# A value residual (Zhou et al. 2024) gives every layer a part of the first layer's values.
# Here it is written in a few lines, tried, and compared; no file of the library changes.

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
# ## The variant
#
# What one layer leaves for the next is `ctx.shared`, a dictionary that the class begins
# with (`shared`) and layers replace. It goes through scan, remat and a decoder's cache like
# any array. Here it holds the first layer's values: with a share $\lambda$ that each layer
# learns,
#
# $$ V_l' = V_l + \lambda_l (V_1 - V_l) $$

# %%
from pathlib import Path

from launch.notebooks.environment import command, report_frame

folder = Path("runs/notebook/own_residual")
folder.mkdir(parents=True, exist_ok=True)
(folder / "value_residual.py").write_text("""
import dataclasses

import jax.numpy as jnp

import attn


@dataclasses.dataclass(frozen=True)
class ValueResidual(attn.Residual):
    share: float = 0.5

    def parameters(self, key, a):
        return {"share": jnp.float32(self.share)}

    def shared(self, a, batch, n, m, dtype):
        return {"first": jnp.zeros((batch, n, a.heads_of_keys, a.d_v), dtype)}

    def values(self, params, v, ctx):
        first = jnp.where(ctx.layer == 1, v, ctx.shared["first"])
        mixed = v + params["share"].astype(v.dtype) * (first - v)
        return mixed, ctx.replace(shared={**ctx.shared, "first": first})
""")
RESIDUAL = f"{folder}/value_residual.py:ValueResidual"

# %% [markdown]
# `launch.check` holds it to the contract: the first layer's values are handed on, gradients
# reach through layers, layers as one that runs N times are the same, and so is a decoder
# that goes step by step.

# %%
command("launch.check", RESIDUAL)

# %% [markdown]
# ## The sweep
#
# Models of four layers a stack: without it, with shares that begin at a half, and with
# attention that takes all values from the first layer, which saves their projections in
# all others if it is as good. The last is a share of one that is not learned: an option
# of a class in three more lines.

# %%
with open(folder / "value_residual.py", "a") as file:
    file.write("""

class FirstValues(ValueResidual):
    def parameters(self, key, a):
        return {}

    def values(self, params, v, ctx):
        return super().values({"share": jnp.float32(1)}, v, ctx)
""")
sizes = (
    dict(STEPS=50, WARMUP=25, PAIRS=1000, HELDOUT=20, LAYERS=2)
    if SMALL
    else dict(STEPS=150, WARMUP=50, PAIRS=20000, HELDOUT=200, LAYERS=4)
)
config = """
from experiments.configs import quick


def get_config():
    config = quick.get_config()
    config.model.update(N=LAYERS, d_model=48, d_ff=192, d_k=12, d_v=12, norm="pre")
    config.training.update(steps=STEPS, evaluate_every=STEPS, save_every=STEPS)
    config.training.schedule = "paper(warmup=WARMUP)"
    config.data.update(pairs=PAIRS, heldout=HELDOUT)
    return config


def sweep_residual():
    yield {"label": "base"}
    yield {"label": "value residual", "model.residual": "OWN:ValueResidual"}
    yield {"label": "first values only", "model.residual": "OWN:FirstValues"}
"""
for name, value in {**sizes, "OWN": folder / "value_residual.py"}.items():
    config = config.replace(name, str(value))
(folder / "question.py").write_text(config)
SEEDS = 1 if SMALL else 4
workdir = folder / ("small" if SMALL else "runs")
command(
    "launch.sweep",
    f"--config={folder}/question.py",
    "--sweep=residual",
    f"--seeds={SEEDS}",
    f"--workdir={workdir}",
)

# %% [markdown]
# After 150 steps the rows with the first layer's values are ahead. That is a beginning, and
# no more: after 600 steps of six layers nothing of it is left
# (`experiments/results/residuals/cldr.md`). Raise `STEPS` to see when.
#
# ## What was learned
#
# The share of the first layer's values, of each layer: a learned number is one array of
# the trained parameters, by its name.

# %%
import matplotlib.pyplot as plt

from experiments.inference import load_model
from experiments.report.trial_files import read_results
from experiments.settings import load_text

# A model's directory may be another person's: code that it names is run where it was loaded.
load_text(RESIDUAL)
figure, axes = plt.subplots(figsize=(6, 3))
for trial in read_results(workdir).trials:
    if trial.label != "value residual":
        continue
    params = load_model(trial.directory).state.params
    for stack, color in (("encoder", "tab:blue"), ("decoder", "tab:orange")):
        shares = [
            float(params[f"{stack}_{i}"]["self_attention"]["residual"]["share"])
            for i in range(sizes["LAYERS"])
        ]
        axes.plot(range(1, len(shares) + 1), shares, "o-", color=color, alpha=0.6)
axes.set(xlabel="layer", ylabel="share of the first layer", title="encoder, decoder")
plt.show()

# %%
report_frame(workdir)

# %% [markdown]
# A method `scores` in place of `values` sees all scores of a layer, as RealFormer does;
# `CONTRIBUTING.md` has the rest, and the same for heads, positions and mixers.
