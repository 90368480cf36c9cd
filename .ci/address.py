"""Sets the repository's public address everywhere at once.

    make address URL=https://github.com/OWNER/attn      URL= takes it out again

pyproject.toml has it, in [project.urls]. From there it goes into CITATION.cff; into README.md,
as a line with Colab's badge where Colab can open it; and into the first cells of the notebooks,
as what pip installs. What they show does not change, so they need not run again.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = "launch/notebooks"
SHOWN = "ablation"
"""The notebook that the badge opens."""
UPLOADED = "attn-*.whl"
"""What a notebook installs where there is no address."""
URLS = re.compile(r"\[project\.urls\]\n(?:\w+ = .*\n)*")
BLOCK = re.compile(r"<!-- \.ci/address\.py -->\n(?:.*\n)*?<!-- / -->")
CODE = re.compile(r"repository-code: .*\n")
ATTN = re.compile(r'^ATTN = ".*"$', re.M)


def set_address(root: Path, address: str) -> None:
    """Writes an address, or none, into all files of a checkout that have it.

    Raises ValueError for what is no address of a repository.
    """
    if address and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
        raise ValueError(
            f"URL={address} is no address of a repository; write https://HOST/OWNER/attn"
        )
    address = address.removesuffix(".git")
    urls = f'Repository = "{address}"\n' if address else ""
    _replace(root / "pyproject.toml", URLS, f"[project.urls]\n{urls}")
    _replace(root / "README.md", BLOCK, _block(address))
    citation = root / "CITATION.cff"
    text = CODE.sub("", citation.read_text())
    citation.write_text(
        text + (f'repository-code: "{address}"\n' if address else ""), "utf-8"
    )
    for source in sorted((root / FOLDER).glob("*.py")):
        if ATTN.search(source.read_text()):
            _set_in_notebook(source, f"git+{address}.git" if address else UPLOADED)


def _set_in_notebook(source, installed):
    _replace(source, ATTN, f'ATTN = "{installed}"')
    path = source.with_suffix(".ipynb")
    notebook = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            text = ATTN.sub(f'ATTN = "{installed}"', "".join(cell["source"]))
            cell["source"] = text.splitlines(keepends=True)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    notebook["metadata"]["attn"]["source"] = digest
    # As nbformat writes it.
    text = json.dumps(notebook, ensure_ascii=False, indent=1)
    path.write_text(text + "\n", "utf-8")


def _block(address):
    lines = []
    if address:
        lines.append(f"`git clone {address}`")
    if match := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", address):
        colab = "https://colab.research.google.com"
        place = f"{colab}/github/{match[1]}/blob/main/{FOLDER}/{SHOWN}.ipynb"
        badge = f"{colab}/assets/colab-badge.svg"
        lines.append(f"[![Open in Colab]({badge})]({place})")
    return "\n".join(["<!-- .ci/address.py -->", *lines, "<!-- / -->"])


def _replace(path, pattern, text):
    found, count = pattern.subn(lambda _: text, path.read_text("utf-8"))
    if count != 1:
        raise ValueError(
            f"{path} has {count} places for the address; one is needed: {pattern.pattern}"
        )
    path.write_text(found, "utf-8")


if __name__ == "__main__":
    try:
        set_address(ROOT, sys.argv[1] if len(sys.argv) > 1 else "")
    except ValueError as error:
        sys.exit(f"error: {error}")
