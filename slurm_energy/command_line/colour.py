"""Colours of output on terminals: when they are used, and which styles exist.

Output has no colour unless the stream is a terminal. NO_COLOR (https://no-color.org) and TERM=dumb switch
colour off. The option --color overrides all of this.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any, Final

AUTO, ALWAYS, NEVER = "auto", "always", "never"
WHEN: Final = (AUTO, ALWAYS, NEVER)

BOLD: Final = "1"
RED: Final = "1;31"
GREEN: Final = "32"
YELLOW: Final = "33"
FAINT: Final = "2"
STATE_STYLES: Final = {
    "ok": GREEN,
    "degraded": YELLOW,
    "failed": RED,
    "absent": FAINT,
}
"""Style of a line by the state that is its first word."""
_HEADING: Final = re.compile(r"^(usage(?=:)|[a-zA-Z][^\n]*(?=:$))", re.MULTILINE)


class _Choice:
    """Value of the last --color option on the command line."""

    when = AUTO


def choose(when: str) -> None:
    """Set when the command uses colour from now on: `auto`, `always` or `never`."""
    _Choice.when = when


def is_enabled(stream: Any = None) -> bool:
    """Return whether output on a stream, by default standard output, is coloured."""
    if _Choice.when != AUTO:
        return _Choice.when == ALWAYS
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    is_terminal = getattr(sys.stdout if stream is None else stream, "isatty", None)
    return bool(is_terminal and is_terminal())


def paint(text: str, style: str, stream: Any = None) -> str:
    """Return the text in a style if the stream gets colour, otherwise unchanged."""
    return f"\x1b[{style}m{text}\x1b[0m" if text and is_enabled(stream) else text


def with_bold_headings(page: str) -> str:
    """Return a help page with its headings in bold."""
    return _HEADING.sub(f"\x1b[{BOLD}m\\1\x1b[0m", page)


class ColourAction(argparse.Action):
    """Action of the option --color. The action takes effect at once, also for a later --help."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Switch coloured output on or off, as the command line option states."""
        choose(values or ALWAYS)


def add_color_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --color to a parser, unless the parser already has this option."""
    if "--color" not in parser._option_string_actions:
        parser.add_argument(
            "--color",
            action=ColourAction,
            choices=WHEN,
            metavar="WHEN",
            dest=argparse.SUPPRESS,
            help="colour: auto (default: on terminals only), always or never",
        )
