"""Command line of the current study step.

The manifest of the step stores it, so that users can run the same command again.
"""

from __future__ import annotations

import shlex
import sys


def command_line() -> str:
    """Return the command line of this process in a form that a shell accepts."""
    return shlex.join(["senergy", *sys.argv[1:]])
