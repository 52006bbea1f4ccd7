"""Comparison with golden files. `UPDATE_GOLDEN=1 pytest ...` writes them; read the diff before committing."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def compare(name: str, text: str) -> None:
    path = _FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"differs from {path.name}"
