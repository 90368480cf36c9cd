"""Counts what a compiled program does on a GPU: kernels, bytes and turns of loops.

It reads XLA's optimised HLO: each operation of a computation that is run, in the entry or in
a loop, is a kernel, a fusion too. A loop counts as often as it turns, where that is known,
else once. CUDA graphs, of which the text says nothing, make kernels cheaper and not fewer.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "opt-barrier", "fusion-done", "copy-done"),
    "async-done",
}
"""Operations that start no kernel: names of arrays, and the ends of those that do."""
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""What writes into its first argument in place, and the argument that says what."""
BITS = re.compile(r"[a-z]+(\d+)")
INSTRUCTION = re.compile(
    r"(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<kind>[a-z][\w\-]*)\("
)


class Work(NamedTuple):
    """Holds what a program does in all."""

    kernels: int = 0
    bytes: int = 0
    """Read and written by kernels."""
    turns: int = 0
    """Of loops, one after another: those of an inner loop once for each of the outer."""


class Instruction(NamedTuple):
    """Holds one operation of a computation."""

    name: str
    type: str
    kind: str
    operands: tuple[str, ...]
    line: str
    is_root: bool


Computations = Mapping[str, list[Instruction]]


def work_of(text: str) -> Work:
    """Returns the work of a program, given the text of its optimised HLO."""
    program, entry = _parsed(text)
    counted = list(_work(program, entry, 1))
    return Work(*map(sum, zip(*counted, strict=True))) if counted else Work()


def _parsed(text: str) -> tuple[Computations, str]:
    program: dict[str, list[Instruction]] = {}
    entry = ""
    own: list[Instruction] = []
    for line in text.splitlines():
        if line[:1] not in ("", " ", "}") and line.endswith("{"):
            name = line.removeprefix("ENTRY ").split(" ")[0].lstrip("%")
            own = program[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif line.startswith(" ") and (found := INSTRUCTION.match(line.strip())):
            rest = line.strip()[found.end() :]
            arguments = rest[: _closing(rest)]
            own.append(
                Instruction(
                    found["name"],
                    # Long types have comments, as /*index=5*/.
                    re.sub(r"/\*.*?\*/", "", found["type"]),
                    found["kind"],
                    tuple(re.findall(r"%([\w.\-]+)", arguments)),
                    line,
                    bool(found["root"]),
                )
            )
    return program, entry


def _closing(text: str) -> int:
    """Returns the place of the bracket that closes the one before the text."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text)


def _work(program: Computations, name: str, times: int) -> Iterator[Work]:
    types = {each.name: each.type for each in program[name]}
    for each in program[name]:
        if each.kind in FREE:
            continue
        if each.kind == "while":
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', each.line)
            turns = int(known[1]) if known else 1
            yield Work(turns=times * turns if known else 0)
            yield from _work(program, _called("body", each), times * turns)
        elif each.kind == "call":
            yield from _work(program, _called("to_apply", each), times)
        elif each.kind == "conditional":
            # One of them is run; they are alike where JAX makes them.
            branch = re.search(
                r"(?:branch_computations=\{|true_computation=)%?([\w.\-]+)", each.line
            )
            yield from _work(program, branch[1] if branch else "", times)
        else:
            yield Work(times, times * _bytes(program, each, types))


def _called(key: str, each: Instruction) -> str:
    found = re.search(rf"\b{key}=%?([\w.\-]+)", each.line)
    assert found, each.line
    return found[1]


def _bytes(program: Computations, each: Instruction, types: Mapping[str, str]) -> int:
    """Returns the bytes that a kernel reads and writes."""
    if each.kind in ("fusion", "fusion-start") and "calls=" in each.line:
        return _bytes_of_fusion(program[_called("calls", each)])
    read = [_size(types[name]) for name in each.operands]
    if each.kind in UPDATES and len(read) > UPDATES[each.kind]:
        return 2 * read[UPDATES[each.kind]]
    if each.kind in SLICES:
        return 2 * _size(each.type)
    return sum(read) + _size(each.type)


def _bytes_of_fusion(body: list[Instruction]) -> int:
    """Returns the bytes of a fusion: of slices their own, of updates in place the update."""
    known = {each.name: each for each in body}
    users = defaultdict(list)
    for each in body:
        for name in each.operands:
            users[name].append(each)

    def readers(name):
        for user in users[name]:
            if user.kind == "bitcast":
                yield from readers(user.name)
            else:
                yield user, name

    total = 0
    for each in body:
        if each.kind != "parameter":
            continue
        found = list(readers(each.name))
        is_sliced = found and all(
            user.kind in SLICES and user.operands[0] == name for user, name in found
        )
        is_written = found and all(
            user.kind in UPDATES and user.operands[0] == name for user, name in found
        )
        whole = _size(each.type)
        if is_sliced:
            whole = min(whole, sum(_size(user.type) for user, _ in found))
        total += 0 if is_written else whole

    def written(name):
        each = known[name]
        if each.kind in ("bitcast", "copy") and each.operands:
            inner = known[each.operands[0]]
            if inner.kind in (*UPDATES, "bitcast"):
                return written(inner.name)
        if each.kind in UPDATES:
            update = known[each.operands[UPDATES[each.kind]]]
            return (2 if each.kind == "scatter" else 1) * _size(update.type)
        return _size(each.type)

    root = next(each for each in body if each.is_root)
    results = root.operands if root.kind == "tuple" else (root.name,)
    return total + sum(map(written, results))


def _size(kind: str) -> int:
    """Returns the bytes of a type, of a tuple of all its arrays."""
    total = 0
    for name, shape in re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", kind):
        bits = BITS.match(name)
        # A truth value, and what has no size, take a byte or none.
        bytes_of_one = int(bits[1]) / 8 if bits else float(name == "pred")
        total += bytes_of_one * math.prod(int(n) for n in shape.split(",") if n)
    return int(total)
