"""Runs the notebooks and stores them with what they show: `make notebooks`.

python -m launch.notebooks.store [NAME ...]
"""

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

FOLDER = Path(__file__).parent
LONGEST = 1800
"""Seconds that a cell may take; a free runtime needs less than three minutes for all."""
WIDGET = "application/vnd.jupyter.widget-view+json"


def main() -> None:
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
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
    for i, cell in enumerate(notebook.cells):
        # Without these, the same outputs give the same file.
        cell["id"] = f"cell-{i}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in joined(cell.outputs) if not is_widget(one)]
    return notebook


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
