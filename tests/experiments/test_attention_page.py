"""Where a trained model looks while it translates lines, as launch.translate shows it."""

import json
import re

import numpy as np
import pytest

from experiments.errors import WorkdirError
from experiments.inference import Translator
from experiments.training import loop
from tests.calls import call
from tests.experiments import tiny

LINES = ["3 days ago in the evening", "", "May 4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained")
    loop.run(tiny.shared(), tiny.corpus(), workdir)
    return workdir


def test_attention_is_of_the_lines_in_their_order(trained):
    translator = Translator(trained)
    texts = ["vor 3 Tagen", "", "4. Mai"]
    records, arrays = translator.attention(LINES, texts)
    assert [record["source"] for record in records] == [LINES[0], LINES[2]]
    assert [record["translation"] for record in records] == [texts[0], texts[2]]
    vocabulary = tiny.corpus().vocabulary()
    for i, record in enumerate(records):
        n = len(vocabulary.encode([record["source"]])[0]) + 1
        m = len(vocabulary.encode([record["translation"]])[0]) + 1
        assert (len(record["source_tokens"]), len(record["target_tokens"])) == (n, m)
        shapes = dict(encoder=(n, n), decoder=(m, m), cross=(m, n))
        for kind, shape in shapes.items():
            weights = arrays[f"{i}/{kind}"].astype(np.float64)
            assert weights.shape == (1, 2, *shape)
            # They are kept in float16.
            np.testing.assert_allclose(weights.sum(-1), 1, atol=2e-3)
            if kind == "decoder":
                assert not np.triu(weights, 1).any()
    # A line by itself is the same.
    (alone,), maps = translator.attention(LINES[2:], texts[2:])
    assert alone == records[1]
    np.testing.assert_array_equal(maps["0/cross"], arrays["1/cross"])


def test_examples_of_several_sentences_are_each_their_own(trained):
    records = json.loads((trained / "examples.json").read_text())
    vocabulary = tiny.corpus().vocabulary()
    assert len({record["source"] for record in records}) == 2
    for record in records:
        n = len(vocabulary.encode([record["source"]])[0]) + 1
        assert len(record["source_tokens"]) == n


def test_the_command_writes_a_page(trained, tmp_path):
    page = tmp_path / "new/looks.html"
    text = "\n".join([*LINES, "</script><b>"] * 20) + "\n"
    done = call("translate", f"--workdir={trained}", f"--attention={page}", text=text)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 80
    assert f"attention of the first 50 of 80 lines: {page}" in done.stderr
    written = page.read_text()
    # What lines say is data, and no markup.
    assert "<b>" not in written and not re.search(r'(src|href)="', written)
    (data,) = re.findall(r'<script type="application/json".*?>(.*?)</script>', written)
    (model,) = json.loads(data)["attention"]
    assert len(model["examples"]) == 37
    assert model["examples"][2]["source"] == "</script><b>"
    assert set(model["examples"][0]["maps"]) == {"encoder", "decoder", "cross"}


def test_a_page_that_cannot_be_written_costs_no_translation(trained, tmp_path):
    done = call(
        "translate", f"--workdir={trained}", f"--attention={tmp_path}", text="a"
    )
    assert done.returncode == 2 and "it is a directory; name a file" in done.stderr
    (tmp_path / "file").touch()
    page = tmp_path / "file/looks.html"
    done = call("translate", f"--workdir={trained}", f"--attention={page}", text="a\n")
    assert done.returncode == 2 and len(done.stdout.splitlines()) == 1
    page = tmp_path / "none.html"
    done = call("translate", f"--workdir={trained}", f"--attention={page}", text="\n")
    assert done.returncode == 0 and "there is no line" in done.stderr
    assert not page.exists()


@pytest.mark.ci
def test_a_model_without_attention_says_so(tmp_path):
    own = tiny.resolve(model__kind="rnn", model__score="none")
    loop.run(own, tiny.corpus(), tmp_path)
    with pytest.raises(WorkdirError, match="has no attention to show"):
        Translator(tmp_path).attention(LINES, LINES)
