"""Says what commands there are."""

import ast
import importlib.util
import sys

from launch import command

COMMANDS = (
    "train",
    "sweep",
    "status",
    "cancel",
    "report",
    "translate",
    "evaluate",
    "export",
    "sample",
    "data",
    "settings",
    "check",
    "bar",
)
# The wheel has no benchmarks.
if importlib.util.find_spec("launch.bench") is not None:
    COMMANDS += ("bench",)


def main() -> None:
    """Prints each command with the first sentence of its description."""
    lines = ["Controlled experiments on attention. The commands:", ""]
    for name in COMMANDS:
        lines.append(f"  python -m launch.{name:10} {_summary(name)}")
    lines += [
        "",
        "Each has --help. Where attn is installed by pip, attn-train is one too.",
    ]
    text = "\n".join(lines)
    if sys.argv[1:] and not command.HELP & set(sys.argv[1:]):
        command.mistake(
            f"python -m launch {sys.argv[1]}: commands are written with a dot, as "
            f"python -m launch.{sys.argv[1] if sys.argv[1] in COMMANDS else 'train'}"
        )
    print(text)


def _summary(name):
    """Returns the first sentence of a command's docstring, which takes no import of JAX."""
    spec = importlib.util.find_spec(f"launch.{name}")
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"launch.{name}.__main__")
    docstring = ast.get_docstring(ast.parse(spec.loader.get_source(spec.name)))
    return " ".join(docstring.partition("\n\n")[0].split())


if __name__ == "__main__":
    main()
