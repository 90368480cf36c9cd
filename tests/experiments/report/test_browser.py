"""The report in a real browser: what its script draws, and what a reader's hand and keyboard find.

The browser is that which CHROMIUM names, or one in the path; without any these tests are left out.
"""

import csv
import dataclasses
import html
import itertools
import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments.evaluation.metrics import METRICS
from experiments.inference import Translator
from experiments.report.attention_page import attention_page
from experiments.report.cells import verdict_text
from experiments.report.finding import finding
from experiments.report.questions import Question
from experiments.report.trial_files import read_results
from experiments.report.write import compare_rows, write_report
from experiments.training import loop
from launch.notebooks.browser import find_browser
from tests.experiments import fakes, tiny

BROWSER = find_browser()
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not BROWSER, reason="no Chromium; CHROMIUM may name one"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("shown")
    loop.run(tiny.resolve(model__N=2), tiny.corpus(), workdir)
    return write_report(workdir).html


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_report(fakes.table_3(tmp_path_factory.mktemp("table"))).html


HEADLESS = "--headless --no-sandbox --disable-gpu --virtual-time-budget=8000".split()
TESTER = """
<script>
const wait = async () => {
  if (!document.querySelector('.heads canvas')) return setTimeout(wait, 20);
  let found;
  try { found = await (async () => { SCRIPT })(); }
  catch (error) { found = {error: String(error)}; }
  const out = document.createElement('pre');
  out.id = 'found';
  out.textContent = JSON.stringify(found);
  document.body.append(out);
};
wait();
</script></body>"""


def shown(*options: str) -> str:
    command = [BROWSER, *HEADLESS, "--dump-dom", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture
def look(tmp_path):
    """What `script`, a function body that runs once a page has drawn itself, returns; in a
    copy of the page that lets it run."""

    def look(page: Path, script: str, *options: str):
        text = page.read_text("utf-8")
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        copy = tmp_path / "copy.html"
        tester = TESTER.replace("SCRIPT", script)
        copy.write_text(text.replace("</body>", tester), "utf-8")
        dom = shown(*options, f"file://{copy}")
        match = re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)
        assert match, dom[-2000:]
        answer = json.loads(html.unescape(match[1]))
        assert not isinstance(answer, dict) or "error" not in answer, answer
        return answer

    return look


def test_every_layer_and_head_and_their_mean_has_its_map(look, page):
    answer = look(
        page,
        """
        const all = name => [...document.querySelectorAll(`#first .heads ${name}`)];
        const pixels = c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return {buttons: all('button').map(button => button.value),
                inked: all('canvas').map(canvas => pixels(canvas).some(x => x))};""",
    )
    buttons = ["0 0", "0 1", "0 2", "1 0", "1 1", "1 2"]
    assert answer == {"buttons": buttons, "inked": [True] * 6}


def test_a_page_of_lines_that_were_just_translated(look, page, tmp_path):
    translator = Translator(page.parent)
    lines = ["3 days ago", "May 4"]
    shown = translator.attention(lines, translator(lines))
    (tmp_path / "looks.html").write_text(attention_page("Looks", *shown))
    answer = look(
        tmp_path / "looks.html",
        """
        const listed = [...document.querySelector('[name=sentence]').options].map(o => o.text);
        const visible = [...document.querySelectorAll('#controls select')]
          .filter(select => select.offsetParent).map(select => select.name);
        const heads = document.querySelectorAll('#first .heads canvas').length;
        return {listed, visible, heads};""",
    )
    assert answer == {"listed": lines, "visible": ["sentence"], "heads": 6}


def test_heads_that_a_layer_lacks_have_no_map_and_no_part_in_the_mean(look, tmp_path):
    """Three layers: one without attention, one of two heads, one of a single one."""
    weights = np.full((3, 2, 2, 2), np.nan)
    weights[1] = 0.5
    weights[2, 0] = np.eye(2)
    names = ("source", "reference", "translation")
    record = dict.fromkeys(names, "a b") | dict(
        source_tokens=["a", "b"], target_tokens=["a", "b"]
    )
    page = attention_page("Looks", [record], {"0/decoder": weights})
    (tmp_path / "looks.html").write_text(page)
    answer = look(
        tmp_path / "looks.html",
        """
        const buttons = [...document.querySelectorAll('#first .heads button')];
        const pixels = c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data];
        const title = document.querySelector('#first h3').textContent;
        const last = buttons.slice(-2).map(button => pixels(button.querySelector('canvas')));
        return {buttons: buttons.map(button => button.value), title, last};""",
    )
    assert answer["buttons"] == ["1 0", "1 1", "1 2", "2 0", "2 2"]
    assert answer["title"].endswith("layer 3, head 1")
    assert answer["last"][0] == answer["last"][1]


def test_a_head_that_is_chosen_is_shown_and_a_cell_that_is_pointed_at_read(look, page):
    answer = look(
        page,
        """
        document.querySelector("#first .heads button[value='1 2']").click();
        const title = document.querySelector('#first h3').textContent;
        const canvas = document.querySelector('#first .large canvas');
        const box = canvas.getBoundingClientRect();
        const at = {clientX: box.left + 1, clientY: box.top + 1};
        canvas.dispatchEvent(new PointerEvent('pointermove', at));
        const tip = document.getElementById('tip'), said = tip.textContent, hidden = tip.hidden;
        const lit = '#first .queries li.on, #first .keys li.on';
        const marked = document.querySelectorAll(lit).length;
        canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));
        return {title, said, hidden, marked, below: tip.textContent};""",
    )
    assert answer["title"].endswith("cross attention, layer 2, mean of heads")
    assert not answer["hidden"] and answer["marked"] == 2
    assert re.fullmatch(r".+ → .+   [01]\.\d\d", answer["said"])
    assert answer["below"] != answer["said"]


def test_the_other_kinds_of_attention_are_drawn(look, page):
    answer = look(
        page,
        """
        const titles = [];
        for (const input of document.querySelectorAll('input[name=kind]')) {
          input.click();
          await new Promise(resolve => setTimeout(resolve, 100));
          const title = document.querySelector('#first h3').textContent;
          titles.push(title.split(': ')[1].split(' ')[0]);
        }
        return titles;""",
    )
    assert answer == ["encoder", "decoder", "cross"]


def test_two_runs_stand_beside_each_other_on_one_sentence(look, table):
    answer = look(
        table,
        """
        const title = side => document.querySelector(`#${side} h3`).textContent;
        const before = ['first', 'second'].map(side => title(side).split(':')[0]);
        const second = document.getElementById('controls').second;
        second.value = '';
        second.dispatchEvent(new Event('change', {bubbles: true}));
        return {before, hidden: document.getElementById('second').hidden};""",
    )
    assert answer["before"][0] == "base, seed 0"
    assert answer["before"][1] in ("big, seed 0", "(A) h=1, seed 0")
    assert answer["hidden"]


def test_rows_are_sorted_searched_and_filtered(look, table):
    answer = look(
        table,
        """
        const all = selector => [...document.querySelectorAll(selector)];
        const names = section => all(`#${section} tbody tr[data-row]`)
          .filter(row => !row.hidden).map(row => row.cells[0].textContent.trim());
        const buttons = all('#results th button');
        const button = buttons.find(button => button.textContent === 'perplexity');
        const orders = [];
        for (let i = 0; i < 3; i++) {
          button.click();
          orders.push([button.closest('th').ariaSort, names('results')]);
        }
        const filter = document.getElementById('filter');
        const say = () => filter.dispatchEvent(new Event('input', {bubbles: true}));
        filter.verdict.value = 'worse'; say();
        const worse = names('results');
        filter.verdict.value = ''; filter.text.value = 'POSITIONS'; say();
        return {orders, worse, found: names('results'),
                differences: new Set(names('differences')).size,
                runs: all('#runs details').filter(run => !run.hidden).length,
                said: filter.querySelector('output').textContent};""",
    )
    (up, lowest), (down, highest), (none, table_order) = answer["orders"]
    assert (up, down, none) == ("ascending", "descending", None)
    assert lowest[0] == highest[-1] == "big" and highest[0] == "(A) h=1"
    assert table_order[0] == "base" and table_order[-1] == "big"
    assert answer["worse"] == ["(A) h=1"]
    assert answer["found"] == ["(E) learned positions"]
    assert (answer["differences"], answer["runs"]) == (1, 1)
    assert answer["said"] == "1 of 5 rows"


def test_a_figure_says_its_values_and_is_saved(look, table):
    answer = look(
        table,
        """
        const figure = document.getElementById('figure-training-curves');
        const svg = figure.querySelector('svg'), spot = data.spots['training-curves'][3];
        const place = new DOMPoint(spot[0] + 2, spot[1]).matrixTransform(svg.getScreenCTM());
        const at = {clientX: place.x, clientY: place.y};
        svg.dispatchEvent(new PointerEvent('pointermove', at));
        const said = tip.textContent;
        let saved;
        URL.createObjectURL = file => { saved = file; return '#'; };
        figure.querySelector('.save').click();
        return {said, expected: spot[2], saved: await saved.text(), type: saved.type};""",
    )
    assert answer["said"] == answer["expected"] and ", step " in answer["said"]
    assert answer["type"] == "image/svg+xml"
    saved = ElementTree.fromstring(answer["saved"])
    assert saved.tag == "{http://www.w3.org/2000/svg}svg"
    assert "spot" not in answer["saved"]


def test_a_link_opens_the_runs_of_its_row(look, table):
    answer = look(
        table,
        """
        const before = document.getElementById('row-1').open;
        document.querySelector('#results a[href="#row-1"]').click();
        await new Promise(resolve => setTimeout(resolve, 100));
        return [before, document.getElementById('row-1').open];""",
    )
    assert answer == [False, True]


@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_sticks_out_of_the_page(look, table, width):
    """Tables and figures that are wider scroll in a window of their own."""
    answer = look(
        table,
        """
        document.querySelectorAll('details').forEach(details => details.open = true);
        const scrolls = element => element.closest('.scroll, .wide, .large, .heads, pre');
        const right = element => element.getBoundingClientRect().right;
        return [...document.querySelectorAll('main *')]
          .filter(element => element.checkVisibility() && !scrolls(element))
          .filter(element => right(element) > innerWidth + 1)
          .map(element => element.outerHTML.slice(0, 90));""",
        f"--window-size={width},900",
    )
    assert answer == []


def test_a_printed_page_has_all_of_its_columns(look, table):
    """Nothing of a table lies beyond the paper: the widest fits between A4's margins."""
    answer = look(
        table,
        """
        const sheet = document.querySelector('style');
        // As printed: the rules for paper hold, at the width of its text.
        sheet.textContent = sheet.textContent.replace('@media print', '@media all')
          .replace(/@media [^{]*max-width[^{]*/, '@media not all ');
        document.body.style.width = '188mm';
        const edge = document.body.getBoundingClientRect().right + 1;
        return [...document.querySelectorAll('table')]
          .filter(table => table.checkVisibility())
          .filter(table => table.getBoundingClientRect().right > edge)
          .map(table => table.parentElement.ariaLabel);""",
    )
    assert answer == []


def test_the_page_runs_its_own_script_and_asks_for_nothing_else(page):
    """The page as it is, with its policy: the maps are there, and nothing in it names
    another place to load from."""
    dom = shown(f"file://{page}")
    assert dom.count("<canvas") == 2 + 6
    assert not re.search(r'(src|href)="https?://', dom)


CHOOSES_ANOTHER_BASE = """
      const select = document.querySelector('#filter [name=base]');
      const own = [select.selectedOptions[0].textContent, select.length];
      select.value = [...select.options].find(o => o.textContent === 'big').value;
      select.dispatchEvent(new Event('change'));
      const rows = table => [...document.querySelectorAll(table + ' tr[data-row]')];
      const cells = (table, i) => rows(table).map(row => row.cells[i].textContent);
      const last = document.querySelector('#results thead tr').cells.length - 1;
      const of = 'table[data-metric=perplexity]';
      const shown = {
        own,
        finding: document.getElementById('finding').textContent,
        names: cells('#results', 0),
        heading: document.querySelector('#results thead tr').cells[last].textContent,
        title: document.getElementById('differences-perplexity').textContent,
        verdicts: cells('#results', last),
        differences: cells(of, 2),
        intervals: cells(of, 3),
        bars: document.querySelectorAll(of + ' td.bar circle').length,
        figure: document.getElementById('figure-differences').hidden,
        told: !document.getElementById('own-base').hidden,
      };
      select.value = 0;
      select.dispatchEvent(new Event('change'));
      shown.back = cells('#results', last);
      shown.figure_back = !document.getElementById('figure-differences').hidden;
      return shown;
    """


def test_a_click_compares_with_another_row(look, table):
    """What the page then shows is what a report against that row has."""
    found = look(table, CHOOSES_ANOTHER_BASE)
    results = read_results(table.parent, METRICS)
    book = dataclasses.replace(results, metrics=fakes.REPORTED)
    rows = compare_rows(book, question=Question("big"))
    (base,) = {row.base for row in rows}
    assert found["own"] == ["base", len(rows)]
    # Intervals are of fewer draws.
    said, expected = (
        re.sub(r"\[.*?\]", "", text)
        for text in (found["finding"], finding(rows, fakes.REPORTED))
    )
    assert said == expected
    assert found["heading"] == "against big"
    assert found["title"] == "Perplexity: differences to big"
    verdicts = [verdict_text(row, fakes.REPORTED) for row in rows]
    shown = [text.strip() for text in found["verdicts"]]
    # Seeds that decide are estimated from other draws.
    kinds = [re.sub(r": about.*?(;|$)", r"\1", text) for text in (*verdicts, *shown)]
    assert kinds[: len(rows)] == kinds[len(rows) :]
    for i, row in enumerate(rows):
        difference = row.differences.get("perplexity")
        text = found["differences"][i]
        if difference is None:
            assert text == "–"
        else:
            assert float(text) == pytest.approx(difference.mean, abs=0.0006)
            low, high = map(float, re.findall(r"[+-][\d.]+", found["intervals"][i]))
            half = (high - low) / 2
            assert half == pytest.approx(difference.half, rel=0.06)
    assert found["bars"] == sum("perplexity" in row.differences for row in rows)
    # A figure of another base would say what the table does not.
    assert found["figure"] and found["told"] and found["figure_back"]
    assert [text.strip() for text in found["back"]][base] != ""


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """A report of two scores by three d_k, compared at the same d_k in another one."""
    trials = []
    for score, d_k, seed in itertools.product(
        ("scaled_dot", "additive"), (4, 16, 64), (0, 1)
    ):
        worse = 0.3 * (score == "scaled_dot") * (d_k == 64)
        scores = fakes.finished(1.2 + worse + 0.01 * seed, 90 - d_k / 20, 95, 0.9)
        point = {"model.score": score, "model.d_k": d_k, "seed": seed}
        trials.append((point, scores, {"pairs": fakes.PAIRS[:1]}))
    return write_report(fakes.sweep(tmp_path_factory.mktemp("product"), trials)).html


def test_a_product_is_a_pivot_table_which_another_base_marks_anew(look, product):
    found = look(
        product,
        """
        const cells = () => [...document.querySelectorAll('[data-pivot=perplexity] td')]
          .map(cell => cell.className + cell.querySelector('.mark').textContent);
        const heads = [...document.querySelectorAll('[data-pivot=perplexity] th')]
          .map(head => head.textContent);
        const before = cells();
        const select = document.querySelector('#filter [name=base]');
        const chosen = [...select.options].find(o => o.textContent === 'score=additive, d_k=64');
        select.value = chosen.value;
        select.dispatchEvent(new Event('change', {bubbles: true}));
        return {heads, before, after: cells(), open: document.getElementById('rows').open};""",
    )
    assert found["heads"] == "score d_k 4 16 64 scaled_dot additive".split()
    assert found["before"][:3] == ["undecided", "base", "worse▼"]
    assert found["after"] == ["undecided"] * 2 + ["worse▼"] + ["undecided"] * 2 + [
        "base"
    ]
    assert not found["open"]


def test_columns_are_chosen_and_what_is_shown_is_saved(look, table):
    found = look(
        table,
        """
        const heads = () => [...document.querySelectorAll('#table thead th')]
          .filter(head => head.checkVisibility()).map(head => head.textContent);
        const boxes = [...document.querySelectorAll('.columns input')];
        const named = name => boxes.find(box => box.parentElement.textContent === name);
        const before = heads();
        for (const name of ['seconds', 'chrF', 'd_k']) named(name).click();
        const filter = document.getElementById('filter');
        filter.text.value = 'big';
        filter.dispatchEvent(new Event('input', {bubbles: true}));
        let saved;
        URL.createObjectURL = file => { saved = file; return '#'; };
        [...document.querySelectorAll('.tools .save')][0].click();
        return {before, after: heads(), saved: await saved.text(), type: saved.type};""",
    )
    assert "seconds" not in found["before"] and "chrF" in found["before"]
    assert {"seconds", "d_k"} <= set(found["after"]) and "chrF" not in found["after"]
    assert found["type"] == "text/csv"
    first, line = csv.reader(found["saved"].splitlines())
    assert first == found["after"]
    cells = dict(zip(first, line, strict=True))
    assert (cells["row"], cells["d_k"], cells["seconds"]) == ("big", "16", "21.5")


def test_links_open_the_folds_they_lead_into(look, table):
    found = look(
        table,
        """
        const named = id => document.getElementById(id);
        const before = [named('differences').open, named('runs').open];
        document.querySelector('nav a[href="#differences"]').click();
        await new Promise(resolve => setTimeout(resolve, 100));
        document.querySelector('#table a[href="#row-1"]').click();
        await new Promise(resolve => setTimeout(resolve, 100));
        const after = [named('differences').open, named('runs').open];
        dispatchEvent(new Event('beforeprint'));
        const printed = document.querySelectorAll('details.fold:not([open])').length;
        dispatchEvent(new Event('afterprint'));
        return {before, after, printed,
                again: document.querySelectorAll('details.fold:not([open])').length};""",
    )
    assert (found["before"], found["after"]) == ([False, False], [True, True])
    assert found["printed"] == 0 < found["again"]


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", ["table", "product"])
def test_the_page_is_for_readers_of_all_kinds(look, request, name, width):
    """axe-core, which finds what a screen reader or weak eyes would stumble over."""
    package = pytest.importorskip("axe_core_python")
    axe = Path(package.__file__).with_name("axe.min.js").read_text("utf-8")
    page = request.getfixturevalue(name)
    copy = page.with_name("with_axe.html")
    text = page.read_text("utf-8")
    copy.write_text(text.replace("</body>", f"<script>{axe}</script></body>"), "utf-8")
    found = look(
        copy,
        """
        document.querySelectorAll('details').forEach(details => details.open = true);
        const ids = async () => (await axe.run(document)).violations.map(v => v.id);
        const own = await ids();
        document.querySelector('main').append(document.createElement('img'));
        return {own, broken: await ids()};""",
        f"--window-size={width},900",
    )
    assert found["own"] == [] and "image-alt" in found["broken"]
