"""What a person types."""

import importlib.util
import logging
import sys

# Matplotlib reports, when it is imported, a cache of fonts that it makes or cannot write,
# which no user has to mend; so it is told before a command imports it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

_INSTALLER = "launch.notebooks.install"
"""The one module of this folder that runs without the packages of experiments."""

if (
    importlib.util.find_spec("ml_collections") is None
    and _INSTALLER not in sys.orig_argv
):
    sys.exit(
        "error: this attn was installed without its experiment runner; "
        "pip install 'attn[experiments]' adds what the commands need"
    )
