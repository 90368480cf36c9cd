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
# # Your own parallel text
#
# From two text files, line i of one translated by line i of the other, to a translator
# with its scores and its attention.

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
# ## The files
#
# `train.en` and `train.de`, `val.en` and `val.de`, `test.en` and `test.de`, plain or .gz,
# a sentence a line. Put yours into `FOLDER` (in Colab: the folder symbol on the left, or
# `google.colab.files.upload()`). So that the notebook runs without any, it writes phrases
# of CLDR there, where the folder has none.

# %%
from pathlib import Path

FOLDER = Path("runs/notebook/text")
SOURCE = "en"
TARGET = "de"

FOLDER.mkdir(parents=True, exist_ok=True)
if not any(FOLDER.iterdir()):
    from experiments.data.corpora import cldr

    made = cldr.generate(
        SOURCE, TARGET, pairs=1000 if SMALL else 20000, heldout=20 if SMALL else 200
    )
    for split, pairs in (
        ("train", made.train),
        ("val", made.validation),
        ("test", made.test),
    ):
        for language, lines in zip((SOURCE, TARGET), pairs):
            (FOLDER / f"{split}.{language}").write_text(
                "".join(line + "\n" for line in lines), "utf-8"
            )
for path in sorted(FOLDER.iterdir()):
    print(path.name, path.read_text("utf-8").splitlines()[:2])

# %% [markdown]
# ## What the text is like
#
# Pairs and lengths, what is repeated, and what training has in common with the test set.
# A file that does not fit the other, or is no UTF-8, is told by its name and line.

# %%
from experiments.configs import quick
from launch.notebooks.environment import command, report_frame

steps = 50 if SMALL else 400
settings = [
    f"--config={quick.__file__}",
    "--config.data.corpus=files",
    f"--config.data.directory={FOLDER}",
    f"--config.data.source={SOURCE}",
    f"--config.data.target={TARGET}",
    f"--config.training.steps={steps}",
    f"--config.training.schedule=paper(warmup={steps // 4})",
    f"--config.training.evaluate_every={steps // 2}",
    f"--config.training.save_every={steps // 2}",
]
command("launch.data", "describe", *settings)

# %% [markdown]
# ## Training
#
# `experiments/configs/quick.py` is a small model; `experiments/settings/schema.py` lists
# all that can be set, as `--config.model.d_model=256`. For longer sentences raise
# `data.max_length` and `training.sequence_length`, for more text `data.vocabulary_size`
# and `training.steps`. Stopped, the same command goes on where it was.

# %%
workdir = f"runs/notebook/{'small' if SMALL else 'own'}-translator"
command("launch.train", *settings, f"--workdir={workdir}")

# %% [markdown]
# ## Translating

# %%
lines = (FOLDER / f"test.{SOURCE}").read_text("utf-8").splitlines()[:5]
command(
    "launch.translate",
    f"--workdir={workdir}",
    "--beam=4",
    text="".join(line + "\n" for line in lines),
)

# %% [markdown]
# ## Where it looked
#
# The last layer's attention to the source, for one sentence of the test set: each row is
# a token that the model wrote, each column one that it read; the mean over heads.

# %%
import matplotlib.pyplot as plt

from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_examples

(trial,) = read_results(workdir).trials
example = read_examples(trial)[0]
written, read = example.axes("cross")
figure, axes = plt.subplots(figsize=(6, 4))
picture = axes.imshow(example.attention["cross"][-1].mean(0), cmap="Blues", vmin=0)
axes.set_xticks(range(len(read)), read, rotation=60)
axes.set_yticks(range(len(written)), written)
figure.colorbar(picture, label="weight")

# %% [markdown]
# ## The report
#
# Scores, training curves, and the attention of every head. (A stored notebook has a
# picture of it; it is `report.html` in the run's folder.)

# %%
report_frame(workdir)
