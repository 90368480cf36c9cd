"""The report in a real browser: what its script draws, and what a reader's hand and keyboard find.

The browser is that which CHROMIUM names, or one in the path; without any these tests are left out.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.report.write import write_report
from experiments.training import loop
from tests.experiments import tiny

NAMES = (
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome",
    "chrome",
    "chrome-headless-shell",
)
BROWSER = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, NAMES)), None
)
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not BROWSER, reason="no Chromium; CHROMIUM may name one"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("shown")
    loop.run(tiny.resolve(model__N=2), tiny.corpus(), workdir)
    return write_report(workdir).html


def opened(page: Path, folder: Path, script: str) -> dict:
    """What `script`, a function body that runs once the page has drawn itself, returns;
    in a copy of the page that lets it run."""
    text = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8")
    )
    tester = (
        "<script>const wait = () => { "
        "if (!document.querySelector('#heads canvas')) return setTimeout(wait, 20);"
        f"let found; try {{ found = (() => {{ {script} }})(); }} "
        "catch (error) { found = {error: String(error)}; }"
        "const out = document.createElement('pre'); out.id = 'found'; "
        "out.textContent = JSON.stringify(found);"
        "document.body.append(out); }; wait();</script></body>"
    )
    (folder / "copy.html").write_text(text.replace("</body>", tester), "utf-8")
    shown = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=8000",
            "--dump-dom",
            f"file://{folder}/copy.html",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', shown.stdout, re.S)
    assert match, shown.stderr[-2000:]
    answer = json.loads(
        match[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")
    )
    assert not isinstance(answer, dict) or "error" not in answer, answer
    return answer


def test_every_layer_and_head_has_its_map(page, tmp_path):
    answer = opened(
        page,
        tmp_path,
        """
        return {buttons: [...document.querySelectorAll('#heads button')].map(b => b.value),
                inked: [...document.querySelectorAll('#heads canvas')].map(c =>
                    c.getContext('2d').getImageData(0, 0, c.width, c.height)"""
        ".data.some(x => x))};",
    )
    assert answer == {"buttons": ["0 0", "0 1", "1 0", "1 1"], "inked": [True] * 4}


def test_a_head_that_is_chosen_is_shown_and_a_cell_that_is_pointed_at_read(
    page, tmp_path
):
    answer = opened(
        page,
        tmp_path,
        """
        document.querySelector("#heads button[value='1 1']").click();
        const title = document.querySelector('#large h3').textContent, """
        """canvas = document.querySelector('#large canvas');
        const box = canvas.getBoundingClientRect(), """
        """at = {clientX: box.left + 1, clientY: box.top + 1};
        canvas.dispatchEvent(new PointerEvent('pointermove', at));
        const tip = document.getElementById('tip'), said = tip.textContent, hidden = tip.hidden;
        const marked = document.querySelectorAll("""
        """'#large .queries li.on, #large .keys li.on').length;
        canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));
        return {title, said, hidden, marked, below: tip.textContent};""",
    )
    assert (
        answer["title"] == "cross attention, layer 2, head 2"
        and not answer["hidden"]
        and answer["marked"] == 2
    )
    assert (
        re.fullmatch(r".+ → .+   [01]\.\d\d", answer["said"])
        and answer["below"] != answer["said"]
    )


def test_the_other_kinds_of_attention_are_drawn(page, tmp_path):
    answer = opened(
        page,
        tmp_path,
        """
        const titles = [];
        for (const input of document.querySelectorAll('input[name=kind]')) {
          input.click();
          titles.push(document.querySelector('#large h3').textContent.split(' ')[0]);
        }
        return titles;""",
    )
    assert answer == ["encoder", "decoder", "cross"]


def test_the_page_runs_its_own_script_and_asks_for_nothing_else(page, tmp_path):
    """The page as it is, with its policy: the maps are there, and nothing in it names
    another place to load from."""
    shown = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=8000",
            "--dump-dom",
            f"file://{page}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (
        shown.stdout.count('<button type="button"') == 4
        or shown.stdout.count("<canvas") == 5
    )
    assert not re.search(r'(src|href)="https?://', shown.stdout)
