"""The digest by which runs of the same batch script with the same arguments are recognised.

The same arithmetic in C is in spank/fingerprint.c, which has the script that really runs, from the job's
own spool directory; here it serves `senergy predict`. It tells a user's scripts apart and proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

DIRECTIVE: Final = b"#SBATCH"
_BASIS, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
FINGERPRINT_FORM: Final = re.compile(r"[0-9a-f]{16}")


def fingerprint(script: bytes, arguments: Sequence[bytes] = ()) -> str:
    """Return 16 hexadecimal digits for a batch script and its arguments.

    Lines that begin with `#SBATCH` are left out: resources, limits and policy are compared by themselves, so
    that a longer time limit does not make another job.

    Source: FNV-1a, 64 bits (draft-eastlake-fnv).
    """
    digest = _BASIS
    kept = (line for line in re.findall(rb"[^\n]*\n|[^\n]+", script) if not line.startswith(DIRECTIVE))
    for piece in (*kept, *(b"\0" + argument for argument in arguments)):
        for byte in piece:
            digest = ((digest ^ byte) * _PRIME) & _MASK
    return f"{digest:016x}"
