"""Rich's console of standard output, and lines on it."""

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


def print_line(console: rich.console.Console, line: str) -> None:
    """Prints a line as it stands: brackets are no markup, and no width breaks it."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
