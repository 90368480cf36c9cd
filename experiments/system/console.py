"""Rich's console of standard output."""

import sys

import rich.console


def stdout_console(
    width: int | None = None, highlight: bool = True
) -> rich.console.Console:
    """Returns a console that draws on a terminal, and writes plain text elsewhere.

    `width` is that of plain text, rich's own without it.
    """
    is_drawn = sys.stdout.isatty()
    return rich.console.Console(
        # With FORCE_COLOR, which notebooks and CI set, rich takes a pipe for a terminal.
        force_terminal=None if is_drawn else False,
        width=None if is_drawn else width,
        highlight=highlight,
    )
