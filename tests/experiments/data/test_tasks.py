"""Tasks: each text is solved again by plain code that reads the symbols alone, splits share no
draws, and a symbol is a token."""

import collections
import itertools
import math
import random

import numpy as np
import pytest

from experiments.data import corpora, dataset
from experiments.data.corpora import CorpusError, tasks
from experiments.data.corpora import scan as scan_commands
from experiments.objectives import NOTHING, NOTHING_ID, Answer
from experiments.settings import TASKS, SettingsError, default_config, override, resolve
from experiments.settings.tasks import SCAN_CUTOFFS

pytestmark = pytest.mark.quick

SIZES = {
    "recall": dict(length=23, test_length=31, key_values=5, symbols=22),
    "fuzzy": dict(length=40, test_length=61, symbols=8, key_values=3, most_symbols=3),
    "needle": dict(length=23, test_length=31, symbols=6, needles=4),
    "flipflop": dict(length=22, test_length=34, ignore=0.5, test_ignore=0.7),
    "backcopy": dict(length=37, symbols=7, triggers=2),
    "selective_copy": dict(length=17, test_length=29, items=5, symbols=7),
    "counting": dict(length=19, symbols=3),
    "copy": dict(length=5, test_length=11, symbols=7),
    "reverse": dict(length=5, test_length=11, symbols=7),
    "sort": dict(length=5, test_length=11, symbols=7),
    "words": dict(length=13),
    "induction": dict(length=3, test_length=17, symbols=5),
    "first": dict(length=11, test_length=17, symbols=5, markers=3),
    "chomsky": dict(length=12, test_length=17, task="stack_manipulation"),
    "scan": dict(split="length"),
    "hops": dict(length=20, test_length=31, nodes=5, hops=3, symbols=9),
    "letters": dict(length=20, test_length=31, block=4, symbols=6),
    "stacks": dict(length=22, test_length=35, stacks=2, symbols=5),
    "listops": dict(length=21, test_length=40, shortest=7, depth=3, arguments=4),
}

ANSWERED = [task for task, cls in TASKS.items() if cls().asked.answers]
"""The tasks that ask for answers, and for no label."""


EVEN = [
    permutation
    for permutation in itertools.permutations(range(5))
    if np.linalg.det(np.eye(5)[list(permutation)]) > 0
]


def data_of(task, **changes):
    return TASKS[task](**{**dict(pairs=60, heldout=20), **SIZES[task], **changes})


def source_of(task, **changes):
    return corpora.open(data_of(task, **changes))


def read(source, split):
    """All (symbols, labels) of a split."""
    pairs = [pair for block in source.read(split) for pair in zip(*block, strict=True)]
    return [(text.split(), labels.split()) for text, labels in pairs]


# Each oracle takes what was read so far and returns what follows, or None where nothing is
# asked. It knows the rules of the task and the symbols' names alone.


def recall(seen):
    key_values = seen[: 2 * SIZES["recall"]["key_values"]]
    if len(seen) == len(key_values):
        return None
    values = dict(zip(key_values[::2], key_values[1::2], strict=True))
    return values.get(seen[-1])


def fuzzy(seen):
    """Reads = as what parts a key from a value, and letters as what parts values from keys."""
    values, key, value = {}, [], None
    for symbol in seen:
        if symbol[0] == "k":
            if value is not None:
                values.setdefault(tuple(key), value)
                key, value = [], None
            key = [*key, symbol]
        elif symbol == "=":
            value = []
        elif symbol[0] == "v":
            value = [*value, symbol]
    if value is None or seen[-1] == ".":
        return None
    known = values.get(tuple(key), [])
    return known[len(value)] if len(value) < len(known) else None


def needle(seen):
    if seen[-1][0] != "k" or seen.index(seen[-1]) == len(seen) - 1:
        return None
    return seen[seen.index(seen[-1]) + 1]


def flipflop(seen):
    if len(seen) % 2 == 0 or seen[-1] != "r":
        return None
    written = [i for i in range(0, len(seen), 2) if seen[i] == "w"]
    return seen[written[-1] + 1]


def selective_copy(seen):
    if ">" not in seen:
        return None
    mark = seen.index(">")
    items = [symbol for symbol in seen[:mark] if symbol != "."]
    return items[len(seen) - 1 - mark]


def counting(seen):
    return f"n{seen.count(seen[-1])}"


def rearranged(order):
    def oracle(seen):
        if ">" not in seen:
            return None
        mark = seen.index(">")
        wanted = [*order(seen[:mark]), "<"]
        return wanted[len(seen) - 1 - mark]

    return oracle


def words(seen):
    """Composes permutations as functions of 0 … 4, in their lexicographic order."""
    image = list(range(5))
    for symbol in seen:
        g = EVEN[int(symbol[1:])]
        image = [g[x] for x in image]
    return f"g{EVEN.index(tuple(image))}"


def induction(seen):
    marks = [i for i, symbol in enumerate(seen) if symbol == "!"]
    return seen[marks[0] + 1] if len(marks) == 2 else None


def hops(seen):
    edges = 2 * SIZES["hops"]["nodes"]
    if len(seen) <= edges or len(seen) % 2:
        return None
    following = dict(zip(seen[:edges:2], seen[1:edges:2], strict=True))
    node = seen[-1]
    for _ in range(int(seen[-2][1:])):
        node = following[node]
    return node


def letters(seen):
    if ">" not in seen:
        return None
    mark = seen.index("#")
    blocks = " ".join(seen[:mark]).split(".")[1:]
    (block,) = [x for x in blocks if set(seen[mark + 1 : mark + 3]) <= set(x.split())]
    return block.split()[len(seen) - mark - 4]


def stacks(seen):
    if len(seen) % 2 == 0 or seen[-1][0] != ")":
        return None
    own = {}
    for sign, item in zip(seen[:-1:2], seen[1:-1:2], strict=True):
        if sign[0] == "(":
            own.setdefault(sign[1:], []).append(item)
        else:
            assert own[sign[1:]].pop() == item
    return own[seen[-1][1:]][-1]


def actions(words):
    """What a command of SCAN stands for, by the rules of Lake and Baroni's figure 7."""
    for word in ("and", "after"):
        if word in words:
            place = words.index(word)
            before, behind = actions(words[:place]), actions(words[place + 1 :])
            return before + behind if word == "and" else behind + before
    if words[-1] in ("twice", "thrice"):
        return actions(words[:-1]) * {"twice": 2, "thrice": 3}[words[-1]]
    verb, *how = words
    action = [] if verb == "turn" else [f"I_{verb.upper()}"]
    if not how:
        return action
    turn = [f"I_TURN_{how[-1].upper()}"]
    if how[0] == "around":
        return (turn + action) * 4
    return turn * (2 if how[0] == "opposite" else 1) + action


def scan(seen):
    if ">" not in seen:
        return None
    mark = seen.index(">")
    return [*actions(seen[:mark]), "<"][len(seen) - 1 - mark]


ORACLES = {
    "hops": hops,
    "letters": letters,
    "stacks": stacks,
    "scan": scan,
    "recall": recall,
    "fuzzy": fuzzy,
    "needle": needle,
    "flipflop": flipflop,
    "selective_copy": selective_copy,
    "counting": counting,
    "copy": rearranged(list),
    "reverse": rearranged(lambda items: items[::-1]),
    "sort": rearranged(lambda items: sorted(items, key=lambda s: int(s[1:]))),
    "words": words,
    "induction": induction,
}


@pytest.mark.parametrize("task", ORACLES)
def test_an_oracle_solves_every_text(task):
    """It also says just where something is asked."""
    source = source_of(task)
    for split in ("train", "test"):
        for symbols, labels in read(source, split):
            for i, label in enumerate(labels):
                expected = ORACLES[task](symbols[: i + 1])
                assert (NOTHING if expected is None else expected) == label


@pytest.mark.parametrize("size", [2, 60])
def test_words_of_other_groups_add(size):
    for symbols, labels in read(source_of("words", group=f"z{size}"), "train"):
        numbers = [int(symbol[1:]) for symbol in symbols]
        expected = [f"g{total % size}" for total in itertools.accumulate(numbers)]
        assert labels == expected


@pytest.mark.parametrize("size", [3, 4, 5])
def test_words_of_permutations_compose(size):
    every = list(itertools.permutations(range(size)))
    for symbols, labels in read(source_of("words", group=f"s{size}"), "train"):
        image = list(range(size))
        for symbol, label in zip(symbols, labels, strict=True):
            image = [every[int(symbol[1:])][x] for x in image]
            assert label == f"g{every.index(tuple(image))}"


def test_scan_has_the_published_commands_and_splits():
    every = scan_commands.commands()
    assert len(every) == 20_910 and max(map(len, every.values())) == 48
    for command, found in every.items():
        assert list(found) == actions(command.split())
    # Of jump and turn_left theirs repeats the command alone until it is a tenth.
    published = {
        "length": (16_990, 3_920),
        "jump": (14_670 - 1_466, 7_706),
        "turn_left": (21_890 - 2_188, 1_208),
    }
    for name, counts in published.items():
        trained, others = scan_commands.split(name, 58, 58, 22)
        assert (len(trained), len(others)) == counts
        assert not set(trained) & set(others)
    words = {word for command in every for word in command.split()}
    words |= {action for found in every.values() for action in found}
    assert words == set(TASKS["scan"]().alphabet) - {">", "<"}
    firsts = [
        text for text, _ in read(source_of("scan", split="jump", pairs=2000), "train")
    ]
    alone = sum(text[:2] == ["jump", ">"] for text in firsts) / len(firsts)
    assert abs(alone - 0.1) < 0.03


@pytest.mark.parametrize("cutoff", SCAN_CUTOFFS)
def test_a_cutoff_of_scan_parts_short_commands_from_long(cutoff):
    trained, others = scan_commands.split("length", 58, 58, cutoff)
    counts = [len(scan_commands.commands()[command]) for command in others]
    assert min(counts) > cutoff
    assert len(trained) + len(others) == 20_910
    # Of fewer words than are asked for there is no command to test with.
    fewest = SCAN_CUTOFFS[cutoff]
    assert scan_commands.split("length", 9, fewest, cutoff)[1]
    assert not scan_commands.split("length", 9, fewest - 1, cutoff)[1]
    with pytest.raises(SettingsError, match=f"test_length to {fewest}"):
        data_of("scan", cutoff=cutoff, length=fewest - 1).check()


def test_listops_are_what_their_names_say():
    def solved(symbols):
        symbol = symbols.pop(0)
        if symbol.isdigit():
            return int(symbol)
        values = []
        while symbols[0] != "]":
            values.append(solved(symbols))
        symbols.pop(0)
        if symbol == "[MED":
            values = sorted(values)
            middle = values[(len(values) - 1) // 2], values[len(values) // 2]
            return sum(middle) // 2
        return {"[MIN": min, "[MAX": max, "[SM": lambda x: sum(x) % 10}[symbol](values)

    deepest = 0
    for split, longest in (("train", 21), ("test", 40)):
        for symbols, (label,) in read(source_of("listops"), split):
            assert 7 <= len(symbols) <= longest
            assert symbols[0] in ("[MIN", "[MAX", "[MED", "[SM")
            assert str(solved(list(symbols))) == label
            steps = [("[" in symbol) - (symbol == "]") for symbol in symbols]
            deepest = max(deepest, *itertools.accumulate(steps))
    assert deepest == SIZES["listops"]["depth"]
    # The published example (Nangia and Bowman 2018, figure 1).
    example = "[MAX 2 9 [MIN 4 7 ] 0 ]".split()
    assert solved(example) == 9


def test_a5_is_a_group_that_is_not_commutative():
    table = np.array(tasks.multiplication_table("a5"))
    assert table.shape == (60, 60)
    assert (table[0] == np.arange(60)).all() and (table[:, 0] == np.arange(60)).all()
    assert (np.sort(table, 0) == np.arange(60)[:, None]).all()
    assert (table[table[7, 11], 23] == table[7, table[11, 23]]).all()
    assert (table != table.T).any()
    # Simple, so products of commutators g h g⁻¹ h⁻¹ reach all of it.
    inverse = np.argmin(table, 1)
    commutators = table[table, table[np.ix_(inverse, inverse)]]
    assert set(commutators.flat) == set(range(60))


def test_backcopy_copies_after_triggers_and_asks_what_follows():
    data = data_of("backcopy", pairs=300)
    follows = collections.Counter()
    for symbols, labels in read(corpora.open(data), "train"):
        assert symbols[0] == "^" and labels[0] == NOTHING and "^" not in symbols[1:]
        assert labels[1:-1] == symbols[2:]
        assert not symbols[1].startswith("t")
        for i in range(1, len(symbols)):
            if symbols[i].startswith("t"):
                assert labels[i] == symbols[i - 1]
            else:
                follows[symbols[i], labels[i]] += 1
    # A chain: what follows a symbol has the shares of its row.
    weights = np.diff(tasks._chain(0, 7, 2), prepend=0, axis=1)
    first = weights[2] / weights[2].sum()
    counts = np.array([follows["s0", name] for name in data.alphabet[1:]])
    assert counts.sum() > 300
    np.testing.assert_allclose(counts / counts.sum(), first, atol=4 * 0.5 / 300**0.5)
    ours = next(iter(tasks.Source(data).texts("test")))
    for position, answer in ours.answers.items():
        assert answer.distance == ours.symbols[position].startswith("t")


@pytest.mark.parametrize("task", ANSWERED)
def test_distances_lead_to_what_decides(task):
    """The symbol that far back is the answer's own, or what says it."""
    texts = list(tasks.Source(data_of(task)).texts("test"))
    for text in texts:
        for position, (symbol, distance) in text.answers.items():
            there = text.symbols[position - distance]
            assert 0 <= distance <= position
            if task == "recall":
                assert there == text.symbols[position] and distance % 2 == 0
            elif task == "hops":
                # Steps, and no places.
                assert text.symbols[position - 1] == f"h{distance}"
            elif task == "scan":
                assert distance == position
            elif task == "chomsky":
                # All of the text, of which only the length is told.
                assert text.symbols[distance] == ">" and position >= distance
            elif task in ("counting", "words") or symbol == "<":
                assert there == text.symbols[position] or position == distance
            elif task == "backcopy" and distance == 0:
                continue
            else:
                assert there == symbol
    expected = [[a.distance for a in text.answers.values()] for text in texts]
    assert source_of(task).distances() == expected


def test_flipflops_distance_is_that_to_the_last_write():
    for text in tasks.Source(data_of("flipflop")).texts("test"):
        for position, (_, distance) in text.answers.items():
            between = text.symbols[position - distance + 1 : position : 2]
            assert text.symbols[position - distance - 1] == "w"
            assert "w" not in between


def test_questions_of_recall_have_the_papers_law():
    """The first of them: p(g) ∝ g^(a − 1), over many texts."""
    data = data_of("recall", heldout=2000, length=20, test_length=20, key_values=1)
    places = [
        (next(iter(text.answers)) - 2) // 2 for text in tasks.Source(data).texts("test")
    ]
    law = np.arange(1, 10) ** (0.01 - 1)
    shares = np.bincount(places, minlength=9) / 2000
    np.testing.assert_allclose(shares, law / law.sum(), atol=4 * 0.5 / 2000**0.5)


def test_instructions_of_the_flipflop_have_their_shares():
    data = data_of("flipflop", heldout=200, test_length=200, test_ignore=0.9)
    texts = [symbols for symbols, _ in read(corpora.open(data), "test")]
    instructions = collections.Counter(
        symbol for symbols in texts for symbol in symbols[2:-2:2]
    )
    total = instructions.total()
    assert total == 200 * 98
    for name, share in (("w", 0.05), ("r", 0.05), ("i", 0.9)):
        error = 4 * math.sqrt(share * (1 - share) / total)
        assert abs(instructions[name] / total - share) < error


@pytest.mark.parametrize("task", TASKS)
def test_equal_settings_give_equal_texts_and_splits_share_none(task):
    one, same = source_of(task), source_of(task)
    texts = {split: read(one, split) for split in corpora.SPLITS}
    assert texts == {split: read(same, split) for split in corpora.SPLITS}
    assert one.fingerprint() == same.fingerprint()
    # The first texts, as texts of few symbols may come in two splits by chance.
    firsts = [texts[split][:8] for split in corpora.SPLITS]
    assert all(a != b for a, b in itertools.combinations(firsts, 2))
    more = source_of(task, pairs=90)
    assert read(more, "train")[:60] == texts["train"]
    other = source_of(task, corpus_seed=1)
    assert read(other, "train") != texts["train"]
    assert other.fingerprint() != one.fingerprint()


@pytest.mark.parametrize("task", ANSWERED)
def test_a_symbol_is_a_token_and_lengths_are_as_the_settings_say(task):
    data = data_of(task)
    prepared = dataset.prepare(data)
    vocabulary = prepared.vocabulary()
    assert vocabulary.size == data.vocabulary_size
    for text, ids in zip(prepared.test.text, prepared.test.ids, strict=True):
        assert [len(line.split()) for line in text] == list(map(len, ids))
        assert vocabulary.decode(ids) == text
    assert prepared.train.source.lengths.max() <= data.max_length
    assert (prepared.train.source.lengths == prepared.train.target.lengths).all()
    assert prepared.counts["train_too_long"] == 0
    asked = [(ids > NOTHING_ID).sum() for ids in prepared.test.ids.target]
    assert asked == list(map(len, prepared.test.distances))
    longest = max(len(ids) for ids in prepared.test.ids.source)
    assert longest <= data.symbols_of(data.lengths["test"])


@pytest.mark.parametrize(
    "task", [task for task, cls in TASKS.items() if hasattr(cls, "form")]
)
def test_pairs_have_what_is_read_and_the_answers(task):
    labelled = read(source_of(task), "test")
    shown = []
    for (symbols, labels), (prompt, answers) in zip(
        labelled, read(source_of(task, form="pairs"), "test"), strict=True
    ):
        assert answers == [label for label in labels if label != NOTHING]
        assert prompt == symbols[: len(prompt)]
        # What is read does not go on with the answer where one is asked.
        asked = zip(labels, prompt[1:], strict=False)
        shown += [label == after for label, after in asked if label != NOTHING]
        # What is left holds answers alone, or places for more.
        left = symbols[len(prompt) :]
        assert len(left) in (0, len(answers)) or set(left) == {">"}
    assert not shown or sum(shown) < 0.9 * len(shown)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.symbols": 7}, "data.symbols=7 must be even"),
        ({"data.key_values": 33}, "data.symbols=64 has 32"),
        ({"data.length": 15}, "takes 4 symbols each, and a text has 15"),
        ({"model.kind": "rnn"}, "model.kind=rnn must be language, or data.form pairs"),
        ({"data.form": "pairs"}, "or data.form labels"),
        ({"data.corpus": "flipflop", "data.length": 7}, "must be even and 4 or more"),
        ({"data.corpus": "backcopy", "data.triggers": 64}, "must be fewer than"),
        ({"data.corpus": "selective_copy", "data.items": 49}, "data.items=49 must"),
        ({"data.corpus": "copy", "data.test_length": 1024}, "2050 tokens, and 2048"),
        ({"data.corpus": "induction", "data.test_length": 2}, "must be 3 or more"),
        ({"data.corpus": "flipflop", "data.form": "pairs"}, "data.form does not apply"),
        ({"data.corpus": "scan", "data.split": "length", "data.length": 28}, "none"),
        ({"data.corpus": "hops", "data.nodes": 24}, "a text has 48"),
        (
            {"data.corpus": "hops", "data.nodes": 9, "data.symbols": 8},
            "at most data.symbols=8",
        ),
        ({"data.corpus": "letters", "data.block": 48}, "must find room in"),
        ({"data.corpus": "fuzzy", "data.symbols": 7}, "data.symbols=7 must be even"),
        ({"data.corpus": "fuzzy", "data.most_symbols": 30}, "take up to 305 symbols"),
        (
            {
                "data.corpus": "fuzzy",
                "data.symbols": 2,
                "data.most_symbols": 1,
                "data.key_values": 2,
            },
            "make 1$",
        ),
        (
            {"data.corpus": "needle", "data.needles": 9, "data.symbols": 8},
            "needs as many keys",
        ),
        (
            {"data.corpus": "needle", "data.needles": 13},
            "takes 4 symbols each, and a text has 48",
        ),
        ({"data.corpus": "stacks", "data.length": 3}, "must be 4 or more"),
    ],
)
def test_what_makes_no_text_is_refused(changes, message):
    base = override(
        default_config(), {"model.kind": "language", "data.corpus": "recall"}
    )
    with pytest.raises(SettingsError, match=message):
        resolve(base, changes)


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_resolve(task):
    objective = TASKS[task]().asked
    changes = {"model.kind": objective.models[0], "data.corpus": task}
    assert resolve(default_config(), changes).objective == objective


@pytest.mark.parametrize("group", tasks.GENERATING)
def test_letters_generate_the_group(group):
    table = tasks.multiplication_table(group)
    generating = tasks.GENERATING[group]
    for letter in generating:
        assert any(table[letter][inverse] == 0 for inverse in generating)
    reached, new = {0}, {0}
    while new:
        new = {table[g][h] for g in new for h in generating} - reached
        reached |= new
    assert len(reached) == len(table)
    texts = read(source_of("words", group=group, letters="generators"), "train")
    letters = {symbol for symbols, _ in texts for symbol in symbols}
    assert letters == {f"g{i}" for i in tasks.GENERATING[group]}


PARITY = '''
import random

from experiments.data.corpora import Pairs


class Parity:
    """Asks at the end whether the ones are odd."""

    objective = "answer"

    def __init__(self, data, length: int = 6):
        self.length = length

    def symbols(self):
        return ("0", "1", "even", "odd")

    def fingerprint(self):
        return f"parity {self.length}"

    def read(self, split):
        rng = random.Random(split)
        texts = [rng.choices("01", k=self.length) for _ in range(9)]
        ends = ["odd" if text.count("1") % 2 else "even" for text in texts]
        nothing = "_ " * (self.length - 1)
        yield Pairs([" ".join(text) for text in texts], [nothing + end for end in ends])

    def place(self, split, i):
        return f"{split}, text {i}"

    def counts(self):
        return {}
'''


def test_a_task_from_outside(tmp_path):
    (tmp_path / "parity.py").write_text(PARITY)
    place = f"{tmp_path}/parity.py:Parity(length=9)"
    changes = {"model.kind": "language", "data.corpus": place}
    settings = resolve(default_config(), changes)
    assert settings.objective == Answer()
    prepared = dataset.prepare(settings.data)
    assert prepared.vocabulary().size == 9 and prepared.test.distances is None
    for ids, labels in zip(*prepared.test.ids, strict=True):
        assert len(ids) == len(labels) == 9
        assert (labels > NOTHING_ID).tolist() == [False] * 8 + [True]


@pytest.mark.parametrize("group", ["s4", "z60", "a5", "s3"])
def test_chance_of_words_of_generators_knows_in_which_half_they_are(group):
    """Of long words each element of a half is as likely, or each of the group."""
    table = np.array(tasks.multiplication_table(group))
    letters = tasks.GENERATING[group]
    likely = np.eye(len(table))[0]
    for _ in range(6000):
        after = np.zeros(len(table))
        for letter in letters:
            np.add.at(after, table[:, letter], likely / len(letters))
        likely = after
    data = data_of("words", group=group, letters="generators")
    assert likely.max() == pytest.approx(data.chance, rel=1e-3)


def test_listops_that_no_list_is_long_enough_for_are_refused(monkeypatch):
    with pytest.raises(
        SettingsError, match="must be at most 6, the symbols of the longest"
    ):
        data_of("listops", depth=1, arguments=4).check()
    monkeypatch.setattr(tasks, "TRIES", 5)
    rare = data_of("listops", shortest=21, length=21)
    with pytest.raises(CorpusError, match=r"lower data\.shortest"):
        list(tasks.Source(rare).texts("train"))


def test_texts_that_come_twice_are_named():
    prepared = dataset.prepare(data_of("copy", symbols=1))
    (line, *_) = prepared.warnings()
    assert line.startswith("warning: 20 of 20 validation pairs are in train too")
    assert line.endswith(
        "texts of few symbols come twice by chance, longer ones do not"
    )
    assert dataset.prepare(data_of("recall")).warnings() == []


@pytest.mark.parametrize(
    "task", [name for name, cls in TASKS.items() if cls().chance is not None]
)
def test_chance_is_what_a_guess_among_possible_answers_reaches(task):
    data = data_of(task, heldout=400)
    texts = list(tasks.Source(data).texts("test"))
    asked = [[answer.symbol for answer in text.answers.values()] for text in texts]
    possible = sorted({symbol for answers in asked for symbol in answers})
    rng = random.Random(0)
    right = []
    for text, answers in zip(texts, asked, strict=True):
        # Of recall and of needles the text's own values, of hops its nodes, of letters the
        # two that are named; elsewhere a guess knows nothing of the text.
        among = answers if task in ("recall", "needle") else possible
        if task == "hops":
            among = text.symbols[: 2 * data.nodes : 2]
        elif task == "letters":
            mark = text.symbols.index("#")
            among = text.symbols[mark + 1 : mark + 3]
        right += [rng.choice(among) == answer for answer in answers]
    spread = (data.chance * (1 - data.chance) / len(right)) ** 0.5
    assert abs(sum(right) / len(right) - data.chance) < 4 * spread
