"""Writing to standard output whatever characters it takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


def emit(lines: Iterable[str]) -> None:
    """Print lines; characters that the terminal's encoding lacks become `?`."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))


def emit_json(value: Any) -> None:
    """Print a JSON document, in ASCII."""
    print(json.dumps(value, indent=2))
