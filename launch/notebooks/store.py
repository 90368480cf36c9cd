"""Runs the notebooks and stores them with what they show: `make notebooks`.

python -m launch.notebooks.store [NAME ...]

In place of a frame, which not every viewer shows, stands a picture of it, which Chromium draws
(CHROMIUM names one that is not in the path). A notebook keeps the hash of its source,
by which a test sees that it is of today's.
"""

import base64
import hashlib
import importlib.metadata
import os
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

from launch.notebooks import browser

FOLDER = Path(__file__).parent
LONGEST = 1800
"""Seconds that a cell may take; a free runtime needs less than three minutes for all."""
WIDGET = "application/vnd.jupyter.widget-view+json"


FRAME = re.compile(r'src="data:text/html;base64,([^"]+)"')


def main() -> None:
    # Those that jupytext writes begin so.
    sources = [
        path for path in FOLDER.glob("*.py") if path.read_text().startswith("# ---")
    ]
    names = sys.argv[1:] or sorted(path.stem for path in sources)
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(run(FOLDER / f"{name}.py"), path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def run(source: Path) -> nbformat.NotebookNode:
    """Returns the notebook of `source` with its outputs, run in an empty folder."""
    notebook = jupytext.read(source)
    notebook.metadata.pop("jupytext", None)
    # The kernel and the commands it starts are elsewhere, and find this attn all the same.
    os.environ["PYTHONPATH"] = str(FOLDER.parents[1])
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=LONGEST,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    # A slider without its kernel moves nothing.
    notebook.metadata.pop("widgets", None)
    notebook.metadata["attn"] = about(source)
    for i, cell in enumerate(notebook.cells):
        # Without these, the same outputs give the same file.
        cell["id"] = f"cell-{i}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            outputs = [one for one in joined(cell.outputs) if not is_widget(one)]
            cell.outputs = [pictured(one) for one in outputs]
    return notebook


def about(source: Path) -> dict[str, str]:
    """Returns the hash of a notebook's source, and the version of attn that ran it."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return dict(source=digest, version=importlib.metadata.version("attn"))


def pictured(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns an output with a picture in place of a frame's page."""
    page = FRAME.search(output.get("data", {}).get("text/html", ""))
    if not page:
        return output
    picture = base64.b64encode(picture_of(base64.b64decode(page[1]))).decode()
    return nbformat.v4.new_output("display_data", {"image/png": picture})


def picture_of(page: bytes) -> bytes:
    """Returns a PNG of the top of a page, as a browser draws it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_bytes(page)
        picture = path.with_suffix(".png")
        browser.draw(path, picture)
        return picture.read_bytes()


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Returns outputs with the pieces of a stream, which come by chance, put together."""
    whole = []
    for output in outputs:
        is_more = output.output_type == "stream" and whole
        if is_more and whole[-1].get("name") == output.name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def is_widget(output: nbformat.NotebookNode) -> bool:
    return WIDGET in output.get("data", {})


if __name__ == "__main__":
    main()
