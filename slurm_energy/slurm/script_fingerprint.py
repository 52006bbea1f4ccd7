"""Fingerprint of a batch script and its arguments. The fingerprint identifies runs of the same work.

spank/fingerprint.c computes the same digest in C. The C code reads the script in the spool directory of the
running job. `senergy predict` uses this module. The digest distinguishes the scripts of a user. The digest is
not a cryptographic hash and proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

DIRECTIVE: Final = b"#SBATCH"
_BASIS, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
FINGERPRINT_FORM: Final = re.compile(r"[0-9a-f]{16}")


def fingerprint(script: bytes, arguments: Sequence[bytes] = ()) -> str:
    """Return the fingerprint of a batch script and its arguments, 16 hexadecimal digits.

    Lines that begin with `#SBATCH` are left out, so that a longer time limit, for example, does not change
    the fingerprint. Resources, limits and the energy policy are compared separately.

    Args:
        script: contents of the script.
        arguments: arguments of the script.

    Source: FNV-1a, 64 bits (draft-eastlake-fnv).
    """
    digest = _BASIS
    lines = (line for line in re.findall(rb"[^\n]*\n|[^\n]+", script) if not line.startswith(DIRECTIVE))
    for piece in (*lines, *(b"\0" + argument for argument in arguments)):
        for byte in piece:
            digest = ((digest ^ byte) * _PRIME) & _MASK
    return f"{digest:016x}"
