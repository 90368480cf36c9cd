"""Draws pages as pictures, for viewers that show no pages."""

import os
import shutil
import subprocess
from pathlib import Path

BROWSERS = (
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome",
    "chrome",
)
SIZE = (1200, 1000)
"""Pixels of a picture: the top of a report has its finding, table and first differences."""


def find_browser() -> str | None:
    """Returns the Chromium that CHROMIUM names, or that is in the path; None for none."""
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)]
    return next(filter(None, named), None)


def draw(page: Path, picture: Path) -> None:
    """Draws the top of a page into a PNG of SIZE.

    Raises RuntimeError where there is no browser.
    """
    browser = find_browser()
    if browser is None:
        raise RuntimeError(
            "a picture of a page takes Chromium: install it, or name it by CHROMIUM"
        )
    width, height = SIZE
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars".split()
    options += ["--virtual-time-budget=8000", f"--window-size={width},{height}"]
    subprocess.run(
        [browser, *options, f"--screenshot={picture}", page.absolute().as_uri()],
        check=True,
        capture_output=True,
    )
