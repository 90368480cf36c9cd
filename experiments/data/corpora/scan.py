"""SCAN: commands of a small language, each with the actions that it stands for.

Lake and Baroni 2018, "Generalization without systematicity" (arXiv 1711.00350), figures 6 and
7: 20,910 commands. The splits are theirs, but for the random one, whose draw is our own.
"""

import functools
import random

PRIMITIVES = ("walk", "look", "run", "jump")
SHARE = 0.8
"""Of the commands that are trained on with the split "random"."""

_ACTIONS = {name: (f"I_{name.upper()}",) for name in PRIMITIVES} | {"turn": ()}


def _turned(verb: str) -> dict[str, tuple[str, ...]]:
    """Returns the commands of a verb with a direction, and without one where it has an action."""
    action = _ACTIONS[verb]
    found = {verb: action} if action else {}
    for side in ("left", "right"):
        turn = (f"I_TURN_{side.upper()}",)
        found[f"{verb} {side}"] = turn + action
        found[f"{verb} opposite {side}"] = turn * 2 + action
        found[f"{verb} around {side}"] = (turn + action) * 4
    return found


@functools.cache
def commands() -> dict[str, tuple[str, ...]]:
    """Returns all commands with their actions."""
    phrases: dict[str, tuple[str, ...]] = {}
    for verb in (*PRIMITIVES, "turn"):
        for phrase, actions in _turned(verb).items():
            phrases[phrase] = actions
            phrases[f"{phrase} twice"] = actions * 2
            phrases[f"{phrase} thrice"] = actions * 3
    found = dict(phrases)
    for first, one in phrases.items():
        for second, other in phrases.items():
            found[f"{first} and {second}"] = one + other
            found[f"{first} after {second}"] = other + one
    return found


@functools.cache
def split(
    name: str, length: int, test_length: int, cutoff: int
) -> tuple[list[str], list[str]]:
    """Returns the commands that are trained on and those of the test, of some length at most.

    "length": those of up to `cutoff` actions, and the others. "jump" and "turn_left": of those with
    that verb, or that phrase, the one which is it alone, with all others; and the rest.
    """
    every = list(commands())
    if name == "random":
        random.Random("scan").shuffle(every)
        chosen = set(every[: int(SHARE * len(every))])
        is_trained = chosen.__contains__
    elif name == "length":
        is_trained = lambda command: len(commands()[command]) <= cutoff
    else:
        phrase = name.replace("_", " ")
        is_trained = lambda command: command == phrase or not _holds(command, phrase)
    trained, others = [], []
    for command in every:
        kept, most = (
            (trained, length)
            if is_trained(command)
            else (others, test_length or length)
        )
        if size(command) <= most:
            kept.append(command)
    return trained, others


def size(command: str) -> int:
    """Returns the words of a command and its actions, with what stands between."""
    return len(command.split()) + 1 + len(commands()[command])


def is_of_a_phrase(name: str) -> bool:
    """Tells whether a split keeps all commands but one with a phrase in them for the test."""
    return name in ("jump", "turn_left")


def _holds(command: str, phrase: str) -> bool:
    # "turn left" is a phrase by itself, and no part of "turn opposite left".
    return f" {phrase} " in f" {command} "
