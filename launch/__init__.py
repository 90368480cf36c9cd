"""What a person types."""

import importlib.util
import logging
import pkgutil
import sys

# Matplotlib reports, when it is imported, a cache of fonts that it makes or cannot write,
# which no user has to mend; so it is told before a command imports it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

_INSTALLER = "launch.notebooks.install"
"""The one module of this folder that runs without the packages of experiments, but for what
notebooks begin with: they install them."""

if (
    importlib.util.find_spec("ml_collections") is None
    and _INSTALLER not in sys.orig_argv
    and "ipykernel" not in sys.modules
):
    sys.exit(
        "error: this attn was installed without its experiment runner; "
        "pip install 'attn[experiments]' adds what the commands need"
    )


def _check_command(arguments):
    """Ends the process where `python -m launch.NAME` has the name of no command."""
    module = arguments[arguments.index("-m") + 1]
    package, _, name = module.partition(".")
    found = [each.name for each in pkgutil.iter_modules(__path__)]
    if package != __name__ or not name or name.partition(".")[0] in found:
        return
    from experiments.errors import hint
    from launch import command
    from launch.__main__ import COMMANDS

    command.mistake(
        f"python -m {module}: no such command{hint(name, COMMANDS)} "
        f"(there are {', '.join(COMMANDS)})"
    )


# Python gives this name to what -m is still looked for, and would say what it lacks itself.
if sys.argv[:1] == ["-m"] and "-m" in sys.orig_argv:
    _check_command(sys.orig_argv)
