"""report.tex, and the page that comes of it."""

import dataclasses
import re
import shutil
import subprocess

import pytest

from experiments.report.latex import to_latex
from experiments.report.questions import Question
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows, write_report, write_results
from tests.experiments import fakes

pytestmark = pytest.mark.quick


def test_latex(table_3):
    lines = table_3.latex.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("% \\usepackage{booktabs,graphicx}")
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    columns = re.fullmatch(r"\\begin\{tabular\}\{@\{\}(l\w+)@\{\}\}", lines[6])[1]
    assert (
        {line.count(" & ") + 1 for line in [*body, lines[8]]} == {len(columns)} == {13}
    )
    assert all(line.endswith(r" \\") for line in body)
    assert re.fullmatch(
        r"\(A\) h=1 & 3 & 262,144 & \d\.\d{3} \$\\pm\$ 0\.\d{3} & \$\+\d\.\d{3}\^\{\*\}\$ "
        r"\$\[\+.*, \+.*\]\$ & 5\.29 & .* & 24\.9 & .* & .* & .* & .* \\\\",
        body[1],
    )
    assert body[2].count("*") == 1
    assert r"(B) d\_k=16 & 2 of 3" in body[2]
    metrics = fakes.REPORTED
    book = read_results(table_3.html.parent, metrics)
    unsure = lambda difference: dataclasses.replace(difference, p=0.06)
    rows = []
    for row in compare_rows(book):
        differences = {key: unsure(value) for key, value in row.differences.items()}
        rows.append(dataclasses.replace(row, differences=differences))
    # p itself is smaller.
    assert "*" not in to_latex(book, rows, table_3.table)
    assert (
        "sample standard deviation" in lines[4]
        and "asterisk" in lines[4]
        and lines[4].startswith(r"\caption{")
    )


def test_measures_of_attention_stand_where_the_caption_explains_them(tmp_path):
    trials = []
    for seed in (0, 1):
        measured = fakes.finished(first_token_mass=0.25 + seed / 2)
        trials.append(({"seed": seed}, measured, {}))
    text = write_report(fakes.sweep(tmp_path, trials)).latex.read_text("utf-8")
    caption, _, body = text.partition(r"\toprule")
    assert "first-token mass" in caption
    assert "first-token mass" in body and r"50.0 $\pm$" in body


def test_the_base_that_is_asked_for_has_the_name(table_3, tmp_path):
    """And the row called base is one of the others, of which the caption says what it has."""
    results = read_results(table_3.html.parent, fakes.REPORTED)
    asked = Question(base="(A) h=1")
    report = write_results(results, tmp_path, question=asked)
    text = report.latex.read_text("utf-8")
    assert "$-$ (A) h=1 &" in text and "$-$ base" not in text
    assert "$-$ (A) h=1: difference to it." in text
    assert r"Compared with (A) h=1; the row base: h=4, d\_k=16" in text
    assert "Perplexity: differences to (A) h=1" in report.markdown.read_text("utf-8")


def test_a_caption_has_no_paths_and_no_advice(table_3):
    text = table_3.latex.read_text(encoding="utf-8")
    assert "quick.py" not in text and "train longer" not in text
    assert r"Base: h=4, d\_k=16" in text


def test_p_stands_in_place_of_intervals_where_asked(table_3, tmp_path):
    results = read_results(table_3.html.parent, fakes.REPORTED)
    text = write_results(results, tmp_path, with_p=True).latex.read_text("utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("(A) h=1")]
    assert re.search(r"\$\+\d\.\d{3}\^\{\*\}\$ \(\$p(<|=)0\.\d{3}\$\)", line)
    assert "$[" not in line and "corrected for all rows" in text


def test_pairs_have_a_table_of_their_own(table_3, tmp_path):
    results = read_results(table_3.html.parent, fakes.REPORTED)
    question = Question(pairs=("big:(A) h=1", "base:big"))
    text = write_results(results, tmp_path, question=question).latex.read_text("utf-8")
    first, second = text.split(r"\end{table}")[:2]
    assert "asterisk" not in first and "asterisk" in second
    body = second[second.index(r"\midrule") :].splitlines()[1:3]
    assert body[0].startswith("big & (A) h=1 & $-") and "^{*}" in body[0]
    assert body[1].startswith("base & big & $+")
    assert len(body[0].split(" & ")) == 2 + len(fakes.REPORTED)


def test_the_method_has_the_numbers_of_the_table(table_3):
    text = table_3.latex.read_text(encoding="utf-8")
    (line,) = [x for x in text.splitlines() if "models were trained" in x]
    rows = [row for row in table_3.rows if row.finished]
    runs = sum(len(row.finished) for row in rows)
    assert line.startswith(
        f"{len(rows)} models were trained with 2 to 3 seeds each, {runs} runs in all. Each "
        "was compared with base in perplexity, BLEU, chrF and exact match "
    )
    count = sum(len(row.differences) for row in rows)
    assert f"The intervals of the {count} comparisons hold simultaneously" in line
    # And what was found is what the verdicts say.
    kinds = [v.kind for row in rows for v in row.verdicts.values()]
    for kind in set(kinds):
        assert f"{kinds.count(kind)} {kind}" in line
    assert line.endswith("with a probability of 0.8.") and line.count(". ") == 4


def test_latex_without_a_base_has_no_differences(tmp_path):
    fakes.trial(
        tmp_path,
        fakes.settings.resolve(fakes.QUICK).to_dict(),
        fakes.finished(),
        name="50 % & more_$^~",
    )
    report = write_report(tmp_path, fakes.REPORTED)
    lines = report.latex.read_text(encoding="utf-8").splitlines()
    assert lines[6] == r"\begin{tabular}{@{}lrrrrrr@{}}"
    assert lines[10] == (
        r"50 \% \& more\_\$\textasciicircum{}\textasciitilde{} "
        r"& 1 & 241,664 & 1.250 & 90.0 & 95.0 & 90.0 \\"
    )


@pytest.mark.ci
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX")
def test_latex_of_any_labels_is_a_page_of_its_width(tmp_path, table_3):
    fakes.trial(
        tmp_path,
        fakes.settings.resolve(fakes.QUICK).to_dict(),
        fakes.finished(),
        name=" ".join(map(chr, range(33, 127))),
    )
    for written in (table_3, write_report(tmp_path)):
        (written.latex.parent / "page.tex").write_text(
            r"\documentclass{article}\usepackage{booktabs,graphicx}"
            r"\begin{document}\input{report}\end{document}"
        )
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page"],
            cwd=written.latex.parent,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and "Overfull" not in done.stdout, done.stdout
