"""Writes a trained model for other places.

python -m launch.export --workdir=runs/own --to=exported --format=safetensors

safetensors: arrays by name with settings and vocabulary, which launch.translate, evaluate and
sample take as a --workdir, anywhere. ctranslate2: a Transformer as the paper has it, for the
library CTranslate2; what that cannot express is refused by name. stablehlo: the decoding of one
text, as programs that need jax alone. Extras: pip install 'attn[export]'.
"""

from pathlib import Path

from absl import flags

from launch import command

_WORKDIR = command.define_workdir("The directory of a trained model")
_OUTSIDE = command.define_outside()
_TO = flags.DEFINE_string("to", None, "A new directory")
command.check_directory("to")
_FORMAT = flags.DEFINE_string("format", "safetensors", "What to write, as above")


def main():
    # Not at the top: a mistake in the flags need not wait until JAX is imported.
    from experiments.export import export

    command.load_outside(_OUTSIDE.value)
    used = export(Path(_WORKDIR.value), Path(_TO.value), _FORMAT.value)
    print(f"{_TO.value}: {used}")


def cli() -> None:
    """Runs the command `attn-export`."""
    command.start(main, required=("workdir", "to"))


if __name__ == "__main__":
    cli()
