"""Tasks of the literature: texts of symbols, generated from a seed, with exact answers.

A text is read from left to right, and at some of its positions a symbol is asked, which
what was read so far decides. With data.form=labels, for a language model, the target has the
answers in their places and NOTHING elsewhere; in pairs, as for an encoder-decoder, it has the
answers alone:

    copy, labels        source  a b >  a b      copy, pairs    source  a b
                        target  _ _ a  b <                     target  a b <

Text i of a split depends on data.corpus_seed, the split and i alone, so that splits share no
draws, and more texts begin with the same ones.
"""

import bisect
import functools
import heapq
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

from experiments.data.corpora import BLOCK, CorpusError, Pairs
from experiments.data.corpora import chomsky as hierarchy
from experiments.data.corpora import scan as commands
from experiments.objectives import NOTHING
from experiments.settings import TaskData

VERSION = 1
"""Version of the generators; it rises whenever equal settings would give other texts."""
TRIES = 100_000
"""Lists of ListOps that are drawn for one of the length that is asked for."""


class Answer(NamedTuple):
    """Holds a symbol that is asked, and how far back the text decides it."""

    symbol: str
    distance: int
    """Positions from where it is asked back to the symbol that decides it, 0 for that
    position itself; of several the one furthest back."""


class Text(NamedTuple):
    """Holds a text, and what is asked after each of its symbols."""

    symbols: list[str]
    answers: dict[int, Answer]
    """The answers by the position of the symbol after which each is asked, rising."""
    prompt: int
    """The first symbols, which hold no answer."""


def recall(rng: random.Random, data, split: str) -> Text:
    """Makes multi-query associative recall (Arora et al. 2023, arXiv 2312.04927).

    Distinct keys come first, each with its value; then each key once more, where its value
    is asked. Question g of the places left, two symbols each, has p(g) ∝ g^(a − 1), without
    replacement, as in their code. All other symbols are random; unlike there they are none
    of the text's keys, of which few symbols would have many that mislead.
    """
    length = data.lengths[split]
    numbers = rng.sample(range(len(data.keys)), data.key_values)
    keys = [data.keys[number] for number in numbers]
    values = rng.sample(data.values, data.key_values)
    begin = 2 * data.key_values
    symbols = list(itertools.chain(*zip(keys, values, strict=True)))
    symbols += _choices_without(rng, data.alphabet, numbers, length - begin)
    places = _without_replacement(
        rng, (length - begin) // 2, data.power, data.key_values
    )
    answers = {}
    for i, place in enumerate(places):
        position = begin + 2 * place
        symbols[position] = keys[i]
        answers[position] = Answer(values[i], position - 2 * i)
    return Text(symbols, dict(sorted(answers.items())), length)


def fuzzy(rng: random.Random, data, split: str) -> Text:
    """Makes fuzzy recall (Poli et al. 2024, "MAD", arXiv 2403.17844): keys of several symbols.

    Keys and values have one to data.most_symbols symbols, and = stands between them. Each pair
    comes once; then pairs come again, and the symbols of their values are asked. Dots fill
    the rest. Unlike there, = says where a key ends, which may be the beginning of another.
    """
    of_keys, of_values = (
        [symbol for symbol in data.alphabet if symbol[0] == letter] for letter in "kv"
    )

    def some(symbols):
        return rng.choices(symbols, k=rng.randint(1, data.most_symbols))

    values = {}
    while len(values) < data.key_values:
        values.setdefault(tuple(some(of_keys)), some(of_values))
    symbols, answers, places = [], {}, {}
    length = data.lengths[split]
    waiting = list(values)
    while True:
        key = waiting.pop() if waiting else rng.choice(list(values))
        begin = len(symbols) + len(key)
        if begin + 1 + len(values[key]) > length:
            break
        if key in places:
            for i, value in enumerate(values[key]):
                answers[begin + i] = Answer(value, begin - places[key] - 1)
        else:
            places[key] = begin
        symbols += [*key, "=", *values[key]]
    symbols += ["."] * (length - len(symbols))
    return Text(symbols, answers, length)


def needle(rng: random.Random, data, split: str) -> Text:
    """Makes needles in noise: keys, each with its value, anywhere, whose values are asked last.

    (Kamradt 2023, "Needle in a haystack", with symbols in place of sentences.)
    """
    length = data.lengths[split]
    ask = length - data.needles
    keys, values = (
        rng.sample(
            [symbol for symbol in data.alphabet if symbol[0] == letter], data.needles
        )
        for letter in "kv"
    )
    noise = [symbol for symbol in data.alphabet if symbol[0] == "n"]
    symbols = rng.choices(noise, k=ask)
    # Gaps between pairs, so that they do not overlap.
    free = sorted(rng.sample(range(ask - data.needles), data.needles))
    places = {key: at + i for i, (key, at) in enumerate(zip(keys, free, strict=True))}
    for key, value in zip(keys, values, strict=True):
        symbols[places[key] : places[key] + 2] = key, value
    answers = {}
    asked = list(zip(keys, values, strict=True))
    rng.shuffle(asked)
    for key, value in asked:
        answers[len(symbols)] = Answer(value, len(symbols) - places[key] - 1)
        symbols.append(key)
    return Text(symbols, answers, length)


def flipflop(rng: random.Random, data, split: str) -> Text:
    """Makes the flip-flop language (Liu et al. 2023, arXiv 2306.00946).

    Instructions w, r and i with a bit each: the bit after r is that after the last w, and is
    asked; the others are random. The first instruction is w, the last r.
    """
    ignore = data.test_ignore if split == "test" else data.ignore
    count = data.lengths[split] // 2
    weights = ((1 - ignore) / 2, (1 - ignore) / 2, ignore)
    between = rng.choices("wri", weights, k=count - 2)
    symbols = []
    answers = {}
    written = 0
    for instruction in ("w", *between, "r"):
        bit = rng.choice("01")
        position = len(symbols)
        if instruction == "w":
            written = position + 1
        if instruction == "r":
            bit = symbols[written]
            answers[position] = Answer(bit, position - written)
        symbols += [instruction, bit]
    return Text(symbols, answers, len(symbols))


def backcopy(rng: random.Random, data, split: str) -> Text:
    """Makes bigram-backcopy (Guo et al. 2024, arXiv 2410.13835).

    After ^ come symbols of a Markov chain; but after a trigger comes the symbol before it
    again. The next symbol is asked everywhere but at ^: at distance 1 after a trigger, where
    the text decides it, and 0 otherwise, where it is a draw.

    The paper's chain is of the letters of a text; here it is drawn from data.corpus_seed.
    """
    chain = _chain(data.corpus_seed, data.symbols, data.triggers)
    names = data.alphabet[1:]
    drawn = [rng.randrange(data.triggers, data.symbols)]
    while len(drawn) < data.lengths[split]:
        if drawn[-1] < data.triggers:
            drawn.append(drawn[-2])
        else:
            weights = chain[drawn[-1]]
            drawn += rng.choices(range(data.symbols), cum_weights=weights)
    answers = {}
    for position in range(1, len(drawn)):
        is_copied = drawn[position - 1] < data.triggers
        answers[position] = Answer(names[drawn[position]], int(is_copied))
    symbols = ["^", *(names[i] for i in drawn[:-1])]
    return Text(symbols, answers, len(symbols))


def selective_copy(rng: random.Random, data, split: str) -> Text:
    """Makes selective copy (Gu and Dao 2023, arXiv 2312.00752, section 4.1.1).

    The items stand at random places among dots, and are asked in their order after >.
    """
    length = data.lengths[split]
    places = sorted(rng.sample(range(length), data.items))
    # After the dot and the mark.
    items = rng.choices(data.alphabet[2:], k=data.items)
    symbols = ["."] * length
    for place, item in zip(places, items, strict=True):
        symbols[place] = item
    answers = {
        length + i: Answer(item, length + i - place)
        for i, (place, item) in enumerate(zip(places, items, strict=True))
    }
    return Text([*symbols, ">", *items[:-1]], answers, length)


def counting(rng: random.Random, data, split: str) -> Text:
    """Makes counting: how often each symbol has come so far is asked at every position.

    After Chang and Bisk (2024), arXiv 2405.20131. The distance is that to the first time.
    """
    length = data.lengths[split]
    symbols = rng.choices(data.alphabet[: data.symbols], k=length)
    counts = {}
    first = {}
    answers = {}
    for position, symbol in enumerate(symbols):
        counts[symbol] = counts.get(symbol, 0) + 1
        first.setdefault(symbol, position)
        answers[position] = Answer(f"n{counts[symbol]}", position - first[symbol])
    return Text(symbols, answers, length)


def copy(rng: random.Random, data, split: str) -> Text:
    """Makes copying: 1 to data.length symbols, then > and the same again, then <."""
    return _rearranged(rng, data, split, list)


def reverse(rng: random.Random, data, split: str) -> Text:
    """Makes reversing: as `copy`, backwards."""
    return _rearranged(rng, data, split, lambda items: items[::-1])


def sort(rng: random.Random, data, split: str) -> Text:
    """Makes sorting: as `copy`, in the order of the symbols' numbers."""
    return _rearranged(rng, data, split, sorted)


def words(rng: random.Random, data, split: str) -> Text:
    """Makes words of a group (Merrill et al. 2024, arXiv 2404.08819).

    Random elements g_1 … g_n; the product g_1 · … · g_i is asked after each. A product of
    permutations is first the left one, then the right one.
    """
    length = data.lengths[split]
    table = multiplication_table(data.group)
    letters = range(len(table))
    if data.letters == "generators":
        letters = GENERATING[data.group]
    drawn = rng.choices(letters, k=length)
    names = data.alphabet
    answers = {}
    state = 0
    for position, element in enumerate(drawn):
        state = table[state][element]
        answers[position] = Answer(names[state], position)
    return Text([names[i] for i in drawn], answers, length)


def induction(rng: random.Random, data, split: str) -> Text:
    """Makes induction (Gu and Dao 2023, arXiv 2312.00752, section 4.1.2).

    Random symbols with one ! among them and one at the end, where what followed the first is
    asked.
    """
    length = data.lengths[split]
    symbols = rng.choices(data.alphabet[1:], k=length)
    # What follows the mark is no mark, so the last place but one is too late.
    place = rng.randrange(length - 2)
    symbols[place] = symbols[-1] = "!"
    answer = Answer(symbols[place + 1], length - 1 - (place + 1))
    return Text(symbols, {length - 1: answer}, length)


def first(rng: random.Random, data, split: str) -> Text:
    """Makes texts labelled by the marker that comes first, of several that each stand once.

    Places and order of the markers are random, so that a guess is right in 1 / data.markers,
    and so is whoever knows the symbols of a text and not their places.
    """
    length = data.lengths[split]
    markers = rng.sample(data.alphabet[: data.markers], data.markers)
    symbols = rng.choices(data.alphabet[data.markers :], k=length)
    places = sorted(rng.sample(range(length), data.markers))
    for place, marker in zip(places, markers, strict=True):
        symbols[place] = marker
    return Text(
        symbols, {length - 1: Answer(markers[0], length - 1 - places[0])}, length
    )


def chomsky(rng: random.Random, data, split: str) -> Text:
    """Makes a task of the Chomsky hierarchy, data.task (Delétang et al. 2023).

    What is asked comes in places ">" after the text, as many whatever the answer, which ends
    by "<" where it may be shorter. The distance is the length of what is read.
    """
    symbols, asked, places = hierarchy.make(rng, data, split)
    length = len(symbols)
    answers = {length + i: Answer(symbol, length) for i, symbol in enumerate(asked)}
    return Text([*symbols, *[">"] * places], answers, length)


def scan(rng: random.Random, data, split: str) -> Text:
    """Makes a command of SCAN and, after >, its actions (Lake and Baroni 2018), then <.

    Of the splits "jump" and "turn_left" a tenth of training is that command alone, as theirs.
    """
    trained, others = commands.split(
        data.split, data.length, data.test_length, data.cutoff
    )
    command = rng.choice(others if split == "test" else trained)
    if split != "test" and commands.is_of_a_phrase(data.split) and rng.random() < 0.1:
        command = data.split.replace("_", " ")
    words, actions = command.split(), commands.commands()[command]
    count = len(words)
    answers = {
        count + i: Answer(action, count + i) for i, action in enumerate((*actions, "<"))
    }
    return Text([*words, ">", *actions], answers, count)


def hops(rng: random.Random, data, split: str) -> Text:
    """Makes questions for the k-th successor of a node of a ring (Depo).

    Allen-Zhu 2025, arXiv 2512.17351, part 4.1. First come the edges of a ring of random nodes,
    in random order, each its node and the next; then questions, each a number of steps and a
    node, after which the node is asked that is so many steps on. The distance is the number of
    steps.
    """
    ring = rng.sample(data.alphabet[data.hops :], data.nodes)
    edges = list(zip(ring, ring[1:] + ring[:1], strict=True))
    rng.shuffle(edges)
    symbols = list(itertools.chain(*edges))
    place_of = {node: place for place, node in enumerate(ring)}
    answers = {}
    for _ in range((data.lengths[split] - len(symbols)) // 2):
        steps = rng.randint(1, data.hops)
        node = rng.choice(ring)
        answer = ring[(place_of[node] + steps) % data.nodes]
        symbols += [data.alphabet[steps - 1], node]
        answers[len(symbols) - 1] = Answer(answer, steps)
    return Text(symbols, answers, len(symbols))


def letters(rng: random.Random, data, split: str) -> Text:
    """Makes letters to be found in blocks (Golovneva et al. 2025, arXiv 2504.00927, section 4).

    Blocks of random letters, each after a dot, then #, a letter and another, of which one
    block alone has both; after > the letters of that block are asked. A query that looks for
    one of the two finds other blocks as well.
    """
    count = data.lengths[split] // (data.block + 1)
    names = data.alphabet[3:]
    wanted = rng.sample(names, 2)
    found = rng.randrange(count)
    symbols = []
    for place in range(count):
        block = rng.choices(names, k=data.block)
        if place == found:
            block = [*wanted, *block[2:]]
            rng.shuffle(block)
            answer = block
        elif set(wanted) <= set(block):
            block = [x for x in block if x != wanted[1]] or [wanted[0]]
            block += [wanted[0]] * (data.block - len(block))
        symbols += [".", *block]
    symbols += ["#", *wanted]
    first = len(symbols)
    begin = found * (data.block + 1) + 1
    answers = {
        first + i: Answer(letter, first + i - (begin + i))
        for i, letter in enumerate(answer)
    }
    return Text([*symbols, ">", *answer[:-1]], answers, len(symbols))


def stacks(rng: random.Random, data, split: str) -> Text:
    """Makes pushes to and pops from several stacks (Kimi Team 2025, arXiv 2510.26692).

    A push is a stack's ( and an item, a pop the stack's ), after which the item on its top is
    asked; the item itself follows. Nothing is popped off an empty stack.
    """
    length = data.lengths[split]
    opening, closing = data.alphabet[: data.stacks], data.alphabet[data.stacks :]
    closing, items = closing[: data.stacks], closing[data.stacks :]
    kept: list[list[tuple[str, int]]] = [[] for _ in range(data.stacks)]
    symbols: list[str] = []
    answers = {}
    while len(symbols) + 2 <= length:
        stack = rng.randrange(data.stacks)
        # The last is a pop, so that each text asks something.
        is_last = len(symbols) + 4 > length
        filled = [i for i, own in enumerate(kept) if own]
        if filled and (is_last or rng.random() < 0.5):
            stack = rng.choice(filled)
            item, place = kept[stack].pop()
            position = len(symbols)
            answers[position] = Answer(item, position - place)
            symbols += [closing[stack], item]
        else:
            item = rng.choice(items)
            kept[stack].append((item, len(symbols) + 1))
            symbols += [opening[stack], item]
    return Text(symbols, answers, len(symbols))


def listops(rng: random.Random, data, split: str) -> Text:
    """Makes ListOps: nested lists with the name of what is taken of each (Nangia and Bowman 2018).

    MIN, MAX, MED, the median rounded down, and SM, the sum modulo 10, as in the Long Range Arena
    (Tay et al. 2020, arXiv 2011.04006); a part of a list is a list itself with p = 1/4, down to
    data.depth.
    """
    longest = data.lengths[split]
    for _ in range(TRIES):
        symbols: list[str] = []
        value = _add_list(symbols, rng, data.depth, data.arguments, longest)
        if data.shortest <= len(symbols) <= longest:
            last = len(symbols) - 1
            return Text(symbols, {last: Answer(str(value), last)}, len(symbols))
    raise CorpusError(
        f"of {TRIES:,} lists of data.depth={data.depth} and data.arguments={data.arguments} "
        f"none has data.shortest={data.shortest} to {longest} symbols: lower data.shortest"
    )


GENERATORS: dict[str, Callable[[random.Random, TaskData, str], Text]] = {
    "recall": recall,
    "fuzzy": fuzzy,
    "needle": needle,
    "flipflop": flipflop,
    "backcopy": backcopy,
    "selective_copy": selective_copy,
    "counting": counting,
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "words": words,
    "induction": induction,
    "first": first,
    "chomsky": chomsky,
    "scan": scan,
    "hops": hops,
    "letters": letters,
    "stacks": stacks,
    "listops": listops,
}
"""The tasks by name: functions of random numbers, settings and split."""


class Source:
    """Generates the texts of the task that data.corpus names."""

    def __init__(self, data: TaskData):
        self._data = data
        self._make = GENERATORS[data.corpus]

    def symbols(self) -> tuple[str, ...]:
        """Returns the symbols, each of which is one token."""
        return self._data.alphabet

    def fingerprint(self) -> str:
        """Returns the settings, which with the generators' version decide all texts."""
        return f"{VERSION} {self._data}"

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the texts of a split as pairs."""
        write = (
            self._as_pair if self._data.asked.targets != "places" else self._in_places
        )
        texts = self.texts(split)
        while pairs := list(map(write, itertools.islice(texts, BLOCK))):
            yield Pairs(*map(list, zip(*pairs, strict=True)))

    def distances(self) -> list[list[int]] | None:
        """Returns for each text of the test the distance of each of its answers, if any."""
        if not self._data.asked.answers:
            return None
        return [
            [answer.distance for answer in text.answers.values()]
            for text in self.texts("test")
        ]

    def texts(self, split: str) -> Iterator[Text]:
        """Gives the texts of a split."""
        data = self._data
        count = data.pairs if split == "train" else data.heldout
        for i in range(count):
            # A text as seed, from which Python draws the same numbers everywhere.
            rng = random.Random(f"{data.corpus} {data.corpus_seed} {split} {i}")
            yield self._make(rng, data, split)

    def place(self, split: str, i: int) -> str:
        """Returns a text's name."""
        return f"{self._data.corpus}, {split}, text {i}"

    def _in_places(self, text):
        answers = [NOTHING] * len(text.symbols)
        for position, answer in text.answers.items():
            answers[position] = answer.symbol
        return " ".join(text.symbols), " ".join(answers)

    def _as_pair(self, text):
        answers = [answer.symbol for answer in text.answers.values()]
        return " ".join(text.symbols[: text.prompt]), " ".join(answers)


GENERATING = {
    "a5": (15, 24, 16, 48),
    "z60": (1, 59, 7, 53),
    "s5": (24, 33, 96),
    "s4": (6, 9, 18),
    "s3": (2, 3, 4),
    "z2": (0, 1),
}
"""Elements that generate each group, with their inverses; of A5 the cycles (0 1 2) and
(0 1 2 3 4), of S5, S4 and S3 the exchange of 0 and 1 and the cycle of all."""


@functools.cache
def multiplication_table(group: str) -> tuple[tuple[int, ...], ...]:
    """Returns the number of g·h in row g and column h; element 0 is the identity.

    "z60" are numbers modulo 60, "z2" modulo 2, of which a word asks the parity; "s5", "s4" and
    "s3" the permutations of so many things, "a5" the even ones of 0 … 4, in their lexicographic
    order, (g·h)(x) = h(g(x)).
    """
    kind, size = group[0], int(group[1:])
    if kind == "z":
        return tuple(tuple((g + h) % size for h in range(size)) for g in range(size))
    permutations = list(itertools.permutations(range(size)))
    if kind == "a":
        permutations = list(filter(_is_even, permutations))
    numbers = {permutation: i for i, permutation in enumerate(permutations)}
    return tuple(
        tuple(numbers[tuple(h[x] for x in g)] for h in permutations)
        for g in permutations
    )


def _add_list(symbols, rng, depth, arguments, longest):
    """Adds a list of ListOps to the symbols and returns its value.

    It stops where there are more symbols than the longest text may have.
    """
    name = rng.choice(("MIN", "MAX", "MED", "SM"))
    symbols.append(f"[{name}")
    values = []
    for _ in range(rng.randint(2, arguments)):
        if len(symbols) > longest:
            return 0
        if depth > 1 and rng.random() < 0.25:
            value = _add_list(symbols, rng, depth - 1, arguments, longest)
        else:
            value = rng.randrange(10)
            symbols.append(str(value))
        values.append(value)
    symbols.append("]")
    if name == "SM":
        found = sum(values) % 10
    elif name == "MED":
        found = math.floor(statistics.median(values))
    else:
        found = (min if name == "MIN" else max)(values)
    return found


def _is_even(permutation):
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0


def _rearranged(rng, data, split, order):
    """Makes a text whose symbols are asked again in an order of their indices.

    `order` takes [(number, index), …] and returns them rearranged.
    """
    count = rng.randint(1, data.lengths[split])
    names = data.alphabet[2:]
    drawn = rng.choices(range(len(names)), k=count)
    asked = order(list(zip(drawn, range(count), strict=True)))
    answers = {}
    for i, (number, index) in enumerate(asked):
        answers[count + i] = Answer(names[number], count + i - index)
    # That it ends is decided by how many symbols stood before the mark.
    answers[2 * count] = Answer("<", 2 * count)
    symbols = [names[number] for number in drawn]
    again = [names[number] for number, _ in asked]
    return Text([*symbols, ">", *again], answers, count)


def _without_replacement(rng, places, power, count):
    """Draws `count` of 0 … places − 1 with p(g) ∝ (g + 1)^(power − 1), in their order.

    The largest log(u) / weight are such draws (Efraimidis and Spirakis 2006).
    """
    # 1 − u is above 0, of which there is a logarithm.
    keys = [
        math.log(1 - rng.random()) / (place + 1) ** (power - 1)
        for place in range(places)
    ]
    return heapq.nlargest(count, range(places), key=keys.__getitem__)


def _choices_without(rng, symbols, places, count):
    """Draws `count` symbols with replacement, none of those at `places`."""
    # So many of the others stand before each; of thousands of symbols no list is made.
    before = [place - i for i, place in enumerate(sorted(places))]
    drawn = rng.choices(range(len(symbols) - len(places)), k=count)
    return [symbols[number + bisect.bisect_right(before, number)] for number in drawn]


@functools.cache
def _chain(seed, symbols, triggers):
    """Returns for each symbol the cumulative weights of those that follow it.

    The weights are log-normal, so that a few symbols are likely, as letters in a language.
    """
    rng = random.Random(f"chain {seed}")
    return [
        list(itertools.accumulate(rng.lognormvariate(0, 2) for _ in range(symbols)))
        for _ in range(symbols)
    ]
