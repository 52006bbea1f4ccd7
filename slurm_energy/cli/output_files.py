"""Writing of output files whose paths users give by options.

If a file cannot be written, the error is reported in one line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_energy.errors import EnergyError

_TODO = "name a writable file"


def write_file(path: Path, text: str) -> None:
    """Write a text file in UTF-8. Lone surrogates are escaped.

    Raises:
        EnergyError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), _TODO) from None


def report_written(path: Path, content: str = "") -> None:
    """Print the name of a written file or directory on standard error, with a description if one is given."""
    print(f"senergy: written: {path}" + (f": {content}" if content else ""), file=sys.stderr)


def check_writable(path: Path) -> None:
    """Check before a long calculation that its result can be written to a file. No file is left behind.

    Raises:
        EnergyError: the file cannot be written.
    """
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), _TODO) from None
