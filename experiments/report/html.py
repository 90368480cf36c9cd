"""Makes pages of HTML from templates, which need no network and no other file."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

FOLDER = Path(__file__).parent
"""The folder of the report's templates, style and scripts."""


def render(
    template: str,
    scripts: Sequence[str | Path],
    folder: Path = FOLDER,
    **values: Any,
) -> str:
    """Returns a page of the template in `folder`, with its style and scripts within it.

    Scripts are files of the report, or paths of others.
    """
    script = "\n".join(_read(name) for name in ("shared.js", *scripts))
    digest = hashlib.sha256(script.encode()).digest()
    return (
        _environment(folder)
        .get_template(template)
        .render(
            # The browser runs this script and no other, whatever the page may come to hold.
            script=script,
            script_digest=base64.b64encode(digest).decode(),
            style=_read("page.css"),
            **values,
        )
    )


@functools.cache
def _environment(folder):
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, FOLDER]),
        # What files say is text, never markup.
        autoescape=True,
        # A misspelt name in the template is an error, and not an empty place in the
        # page.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["verdict_parts"] = verdict_parts
    return environment


@functools.cache
def _read(name):
    # A path that is absolute is itself.
    return (FOLDER / name).read_text(encoding="utf-8")


def verdict_parts(text: str) -> list[tuple[str, str]]:
    """Splits a cell of verdicts into (kind, words), where the kind is its first word."""
    parts = text.split("; ")
    return [(part.partition(" ")[0].strip(":,"), part) for part in parts]
