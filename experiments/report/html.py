"""Makes pages of HTML from templates, which need no network and no other file."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2


def render(template: str, scripts: Sequence[str], **values: Any) -> str:
    """Returns a page, with its style and scripts within it."""
    script = "\n".join(_read(name) for name in ("shared.js", *scripts))
    digest = hashlib.sha256(script.encode()).digest()
    return (
        _environment()
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
def _environment():
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
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
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def verdict_parts(text: str) -> list[tuple[str, str]]:
    """Splits a cell of verdicts into (kind, words), where the kind is its first word."""
    parts = text.split("; ")
    return [(part.partition(" ")[0].strip(":,"), part) for part in parts]
