"""Every code block of attn/README.md runs, one after another."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "attn" / "README.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_what_the_code_blocks_import_is_there():
    code = "\n".join(BLOCK.findall(README.read_text()))
    imports = re.findall(r"^(?:import|from) .*", code, re.MULTILINE)
    assert len(imports) >= 8
    for line in imports:
        exec(line, {})


@pytest.mark.ci
def test_the_code_blocks_run_in_order(capsys):
    text = README.read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 8
    names = {"__name__": "readme"}
    for block in blocks:
        line = text[: text.index(block)].count("\n")
        # Empty lines before the block, so that an error names the README's line.
        exec(compile("\n" * line + block, str(README), "exec"), names)
    assert "●" in capsys.readouterr().out


def test_every_file_that_the_layout_names_is_there():
    layout = re.findall(r"^    (\S+)  +\S", README.read_text(), re.MULTILINE)
    assert len(layout) >= 12
    for name in layout:
        assert (README.parent / name).exists(), name
