"""A small language model on a task that is generated, with exact answers; the base of others.

    python -m launch.train --config=experiments/configs/tasks.py:recall --workdir=runs/recall
    python -m launch.sweep --config=experiments/configs/tasks.py:copy --sweep=mixing --seeds=2 \
      --workdir=runs/copy

The tasks are recall, fuzzy, needle, flipflop, backcopy, selective_copy, counting, copy, reverse,
sort, words, induction, hops, letters, stacks, scan (by data.split) and chomsky (fifteen, by
data.task); `experiments/data/corpora/tasks.py` says what each is, and of which paper. The model
reads a text and is trained on its answers alone, at the places where they are asked. result.json
has their accuracy in all, and in `accuracy_by` by position and by distance. The tasks first and
listops ask for a label of each text, which a classifier gives; labels.py has more on first.

Two layers of width 64 and no dropout, as texts never come twice in so few steps; a trial
takes a minute or two on one CPU core.
"""

from experiments.configs import quick
from experiments.settings import TASKS, override


def get_config(task="recall"):
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
    # Through `override`, because another kind and corpus have other settings.
    (kind, *_) = TASKS[task]().asked.models
    config = override(quick.get_config(), {"model.kind": kind, "data.corpus": task})
    config.data.update(pairs=30_000, heldout=500)
    config.model.update(norm="pre", P_drop=0.0)
    config.training.update(
        steps=1000,
        batch_size=64,
        # Answers are certain.
        eps_ls=0.0,
        evaluate_every=250,
        save_every=500,
    )
    config.update(sized(config))
    return config


def sweep_mixing(config):
    """What mixes positions."""
    side = "encoder" if config.model.kind == "classifier" else "decoder"
    for mixer in ("attention", "recurrence(cell=gru)", "separable(radius=4)"):
        yield {f"model.{side}_mixing": mixer}


def sweep_positions():
    for positions in ("sinusoidal", "rotary", "alibi", "none"):
        yield {"model.positions": positions}


def mixed(systems):
    """Yields a point for each {label: (what mixes positions, what positions attention has)}."""
    for label, (mixer, positions) in systems.items():
        yield {
            "label": label,
            "model.decoder_mixing": mixer,
            "model.positions": positions,
        }


def sized(config, **changes):
    """Returns the settings, nested, that follow from those of the data with `changes`.

    A row holds one text.
    """
    data = {**config.data.to_dict(), **changes}
    sizes = TASKS[config.data.corpus](**data)
    return {
        "training": {"sequence_length": sizes.max_length},
        # Of data.form=pairs answers may be longer than what is read.
        "evaluation": {"max_length": sizes.longest, "max_extra": sizes.longest},
    }


def point(config, **changes):
    """Returns a sweep's point with `changes` of the data, and what follows from them."""
    flat = {f"data.{name}": value for name, value in changes.items()}
    for group, values in sized(config, **changes).items():
        flat |= {f"{group}.{name}": value for name, value in values.items()}
    return flat
