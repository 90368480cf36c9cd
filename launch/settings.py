"""Lists every setting with its default, what it may be, and what it does.

    python -m launch.settings
    python -m launch.settings model.h positions
    python -m launch.settings --markdown > experiments/settings/README.md

Words after the command choose the settings with one of them in the name. A setting is
given to other commands as --config.GROUP.NAME=VALUE, and in a config file as
config.GROUP.NAME.
"""

import sys

from absl import flags

from experiments.settings import describe, settings_named
from launch import command

_MARKDOWN = flags.DEFINE_bool(
    "markdown", False, "Write the page experiments/settings/README.md"
)

GROUPS = {
    "model": "The model",
    "data": "The data",
    "training": "Training",
    "evaluation": "Evaluation",
    "seed": "The seed",
}
"""The headings of the groups."""

PAGE = """# Settings

On the command line a setting is `--config.GROUP.NAME=VALUE`, such as `--config.model.h=2`, in a
config file `config.model.h = 2`. Each is shown with its default and, in brackets, what it may be.
`python -m launch.settings WORD` lists those with a word in the name.

This page is the output of `python -m launch.settings --markdown`; its sources are
[attn/config.py](../../attn/config.py), [corpora.py](corpora.py), [tasks.py](tasks.py) and
[schema.py](schema.py).
"""


def main(words: list[str]) -> None:
    """Prints the settings, all or those with one of `words` in their names.

    A word may be a name from elsewhere too, as lr.
    """
    if _MARKDOWN.value:
        print(page(), end="")
        return
    meant = {key for word in words for key in settings_named(word)}
    chosen = [
        setting
        for setting in describe.settings()
        if not words
        or setting.key in meant
        or any(word in setting.key for word in words)
    ]
    if not chosen:
        command.mistake(
            f"no setting has {' or '.join(map(repr, words))} in its name; without words "
            "this command lists all"
        )
    print("\n\n".join(map(_text, chosen)))
    if not words:
        print("\nChoices, with their options:")
        for option in describe.options():
            print(f"\n  {option.written} ({option.key})\n    {option.words}")


def page() -> str:
    """Returns all settings as Markdown: a list a group, and one for what has it alone."""
    parts = [PAGE]
    for group, title in GROUPS.items():
        parts.append(f"## {title}\n")
        lists = {}
        for setting in describe.settings():
            if setting.key.partition(".")[0] == group:
                lists.setdefault(setting.kinds, []).append(_item(setting))
        for kinds, items in lists.items():
            if kinds:
                parts.append(f"For {', '.join(kinds)}:\n")
            parts.append("\n".join(items) + "\n")
    parts.append("## Choices and their options\n")
    choices = {}
    for option in describe.options():
        item = f"- `{option.written}`: {option.words}"
        choices.setdefault(option.key, []).append(item)
    for kind, items in choices.items():
        parts.append(f"### {kind}\n")
        parts.append("\n".join(items) + "\n")
    return "\n".join(parts)


def _item(setting):
    # What follows a colon is for messages, such as the letters that a name may have.
    allowed = setting.allowed.partition(": ")[0]
    kind = _choice(setting)
    if kind:
        allowed = f"[{kind}](#{kind}) or file.py:Name"
    return f"- `{setting.key}={setting.default}` ({allowed}). {setting.words}"


def _choice(setting):
    """Returns the kind of choice that a setting is, such as mixing, or ""."""
    name = setting.key.rpartition(".")[2]
    kind = "mixing" if name.endswith("_mixing") else name
    return kind if kind in describe.CHOICES else ""


def _text(setting):
    of = f" (of {', '.join(setting.kinds)})" if setting.kinds else ""
    head = f"--config.{setting.key}={setting.default}{of}"
    return f"{head}\n  {setting.allowed}\n  {setting.words}"


def cli() -> None:
    """Runs the command `attn-settings`."""
    # The words are no flags, which `command.start` would refuse.
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    sys.argv[1:] = [word for word in sys.argv[1:] if word.startswith("-")]

    def run():
        main(words)

    command.start(run)


if __name__ == "__main__":
    cli()
