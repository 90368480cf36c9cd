"""Says in one line what would keep `make install` from working; for any Python 3.

python .ci/check_install.py VENV EXTRAS
"""

import os
import subprocess
import sys


def main(venv, extras):
    """Exits with a message for a wrong Python or an unknown extra."""
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):
        sys.exit(
            f"attn needs Python 3.11 or newer, this is {version}; name one with "
            "make PYTHON=python3.12 ..."
        )
    there = os.path.join(venv, "bin", "python")
    if os.path.exists(there):
        show = "import sys; print(sys.version.split()[0])"
        other = subprocess.check_output([there, "-c", show], text=True).strip()
        if other.split(".")[:2] != version.split(".")[:2]:
            sys.exit(
                f"{venv} has Python {other}, asked for is {version}: name another "
                f"environment, make VENV=.venv-{version} ..., or remove {venv}"
            )
    import tomllib

    with open("pyproject.toml", "rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    unknown = [name for name in extras.split(",") if name and name not in known]
    if unknown:
        sys.exit(f"EXTRAS={extras}: {unknown[0]} is none of {', '.join(known)}")


main(*sys.argv[1:])
