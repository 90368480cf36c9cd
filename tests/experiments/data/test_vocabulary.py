"""The vocabulary: nothing is lost, nothing is unknown, and the same text gives the same bytes."""

import subprocess
import sys

import numpy as np
import pytest
import sentencepiece

from experiments.data.corpora import cldr
from experiments.data.vocabulary import (
    BOS,
    EOS,
    PAD,
    UNK,
    Vocabulary,
    VocabularyError,
    kept_vocabulary,
    made_vocabulary,
    train_vocabulary,
)
from experiments.settings import resolve

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def sentences():
    corpus = cldr.generate(pairs=3000, heldout=1)
    return corpus.train.source + corpus.train.target


@pytest.fixture(scope="module")
def vocabulary(sentences):
    return Vocabulary(train_vocabulary(sentences, 500))


def test_size_and_control_tokens(vocabulary):
    assert vocabulary.size == 500
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert vocabulary.tokens([PAD, BOS, EOS, UNK]) == ["<pad>", "<s>", "</s>", "<unk>"]


def test_round_trip_of_the_corpus(vocabulary, sentences):
    assert vocabulary.decode(vocabulary.encode(sentences)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "Two men – „zwei Männer“ – sit.",
        "ﬁ x² Å",
        "日本語 🙂",
        "a  b",
        " a ",
        "tab\there",
        "one\u2028line",
        "</s>",
        "",
    ],
)
def test_round_trip_of_text_never_seen(vocabulary, text):
    [ids] = vocabulary.encode([text])
    assert vocabulary.decode([ids]) == [text]
    assert not np.isin(ids, (PAD, BOS, EOS, UNK)).any()


def test_encode_gives_int32_arrays_without_marks(vocabulary):
    first, empty = vocabulary.encode(["in 3 minutes", ""])
    assert first.dtype == empty.dtype == np.int32
    assert len(empty) == 0
    assert vocabulary.tokens(first)[:3] == ["▁in", "▁", "3"]


@pytest.mark.parametrize(
    ("number", "tokens"),
    [("1999", ["19", "99"]), ("7,305.2", ["7", ",", "30", "5", ".", "2"])],
)
def test_digits_go_in_pairs(vocabulary, number, tokens):
    [ids] = vocabulary.encode([number])
    assert vocabulary.tokens(ids) == ["▁", *tokens]


def test_decode_cuts_at_the_end_mark_and_skips_padding(vocabulary):
    [ids] = vocabulary.encode(["3 days ago"])
    row = np.concatenate([[PAD, BOS], ids, [PAD, EOS], ids, [PAD, PAD]])
    assert vocabulary.decode([row, row.tolist(), [EOS]]) == [
        "3 days ago",
        "3 days ago",
        "",
    ]
    assert vocabulary.decode(np.stack([row, row])) == ["3 days ago"] * 2
    assert vocabulary.decode([]) == []


def test_same_text_same_bytes_in_another_process(vocabulary):
    program = """
from experiments.data.corpora import cldr
from experiments.data.vocabulary import Vocabulary, train_vocabulary
corpus = cldr.generate(pairs=3000, heldout=1)
print(Vocabulary(train_vocabulary(corpus.train.source + corpus.train.target, 500)).digest)
"""
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.split() == [vocabulary.digest]
    assert other.stderr == ""  # sentencepiece is to be silent


def test_digest_names_the_model(vocabulary, sentences):
    assert vocabulary.digest != Vocabulary(train_vocabulary(sentences, 501)).digest
    assert vocabulary.digest == Vocabulary(vocabulary.model).digest


def test_more_tokens_than_the_text_has(sentences):
    with pytest.raises(
        VocabularyError,
        match=r"^data.vocabulary_size=90000 is more than .* the largest possible is \d{3,4}$",
    ):
        train_vocabulary(sentences, 90_000)


@pytest.mark.parametrize("size", [100, 400])
def test_fewer_tokens_than_the_text_has_characters(sentences, size):
    with pytest.raises(
        VocabularyError,
        match=rf"^data.vocabulary_size={size} is too small .* needs at least 4\d\d$",
    ):
        train_vocabulary(sentences, size)


@pytest.mark.parametrize("text", ["a", "11 22", "字"])
def test_the_smallest_size_that_may_be_set_is_none_too_large(text):
    """Whatever the text: its largest vocabulary can be set."""
    with pytest.raises(VocabularyError, match=r"the largest possible is \d+$") as error:
        train_vocabulary([text], 800)
    largest = int(str(error.value).split()[-1])
    size = resolve({}, {"data.vocabulary_size": largest}).data.vocabulary_size
    assert Vocabulary(train_vocabulary([text], size)).size == largest


@pytest.mark.parametrize("nothing", [[], ["", ""]])
def test_no_text(nothing):
    with pytest.raises(
        VocabularyError, match="no text to train a vocabulary of 300 tokens on"
    ):
        train_vocabulary(nothing, 300)


def test_characters_are_one_token_each_and_others_are_bytes(sentences):
    vocabulary = Vocabulary(made_vocabulary("characters", sentences, 1000))
    letters = set().union(*sentences)
    assert vocabulary.size == 4 + 256 + len(letters - {" "} | {"▁"})
    [ids, other] = vocabulary.encode([sentences[0], "字"])
    # Its beginning is one too.
    assert len(ids) == 1 + len(sentences[0])
    assert len(other) == 1 + len("字".encode())
    assert vocabulary.decode([ids, other]) == [sentences[0], "字"]


def test_of_too_many_characters_the_rarest_are_bytes():
    vocabulary = Vocabulary(made_vocabulary("characters", ["aaa bb c"] * 9, 263))
    [ids] = vocabulary.encode(["abc"])
    assert vocabulary.size == 263
    assert vocabulary.tokens(ids.tolist()) == ["▁", "a", "b", "<0x63>"]
    with pytest.raises(VocabularyError, match="no room for characters beside 260"):
        made_vocabulary("characters", ["a"], 260)


def test_a_vocabulary_that_is_kept(vocabulary, tmp_path):
    (tmp_path / "vocabulary.model").write_bytes(vocabulary.model)
    assert kept_vocabulary(str(tmp_path)) == vocabulary.model
    assert kept_vocabulary(str(tmp_path / "vocabulary.model")) == vocabulary.model


def test_what_is_no_vocabulary_is_named(tmp_path):
    with pytest.raises(
        VocabularyError, match=r"cannot be read .*, or bpe or characters"
    ):
        kept_vocabulary(str(tmp_path))
    (tmp_path / "text").write_text("no model")
    with pytest.raises(VocabularyError, match=r"text is no model of sentencepiece$"):
        kept_vocabulary(str(tmp_path / "text"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"]),
        model_prefix=str(tmp_path / "other"),
        vocab_size=8,
        hard_vocab_limit=False,
        minloglevel=3,
    )
    with pytest.raises(VocabularyError, match=r"are its ids \(-1, 1, 2, 0\)"):
        kept_vocabulary(str(tmp_path / "other.model"))


@pytest.mark.parametrize("text", ["字 a ☃字", "a", "", "tab\there"])
def test_characters_that_are_spelled_in_bytes(vocabulary, text):
    [ids] = vocabulary.encode([text])
    assert vocabulary.spelled(ids) == set(text) & set("字☃\t")
