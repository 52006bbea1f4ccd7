"""Command line of a study step, in the form that the manifest of the step stores."""

from __future__ import annotations

import shlex
import sys


def command_line() -> str:
    """Return the command line of this process in a form that a shell accepts."""
    return shlex.join(["senergy", *sys.argv[1:]])
