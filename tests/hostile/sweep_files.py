"""A sweep with files of any content."""

from pathlib import Path

from tests.experiments import fakes


def trials(workdir, kept=None) -> Path:
    """A sweep of three trials."""
    return fakes.sweep(
        workdir,
        [
            (
                {"label": "base"},
                fakes.finished(),
                {"pairs": fakes.PAIRS[:1], "sentences": kept},
            ),
            ({"label": "base", "seed": 1}, fakes.finished(), {"sentences": kept}),
            ({"label": "a", "model.h": 2}, fakes.finished(), {"sentences": kept}),
        ],
    )


def replaced(value, place, new):
    """A JSON value with another at the dotted `place`, which is made where it is not there."""
    name, _, rest = place.partition(".")
    if isinstance(value, list):
        i = int(name) if name.isdigit() else len(value)
        return [
            *value[:i],
            replaced(value[i] if i < len(value) else {}, rest, new) if rest else new,
            *value[i + 1 :],
        ]
    value = value if isinstance(value, dict) else {}
    name, rest = (
        (place, "") if place.startswith("model.") and place in value else (name, rest)
    )
    return value | {name: replaced(value.get(name, {}), rest, new) if rest else new}
