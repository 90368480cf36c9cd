"""Small files: read whole, written whole or not at all."""

import json
import os
import re
from pathlib import Path
from typing import Any


def slug(name: str) -> str:
    """`name` as a directory's: "h=2 d_k=32" becomes "h=2,d_k=32", and nothing leads out of the directory."""
    return re.sub(r"[^\w=.,+-]+", ",", name).strip(".,")[:80]


def read_json(path: Path) -> Any:
    """The file's content, or None where there is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes the whole file or nothing: a reader sees the old content or the new, whenever the power goes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
