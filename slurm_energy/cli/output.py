"""Output of text and JSON on standard output, and of notes and errors on standard error.

The module also defines the options for the format.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.command_line import colour
from slurm_energy.command_line.help_text import wrap
from slurm_energy.errors import EnergyError
from slurm_energy.safe_text import encodable, escape_controls

if TYPE_CHECKING:
    from slurm_energy.reports.plots.text_plot import Glyphs

_MAX_LISTED: Final = 5
_ASCII_LOCALES: Final = ("C", "POSIX")


def emit(lines: Iterable[str]) -> None:
    """Print lines that may contain text chosen by users.

    Control characters, including newlines, are escaped, so that no name can control the terminal or imitate
    another line. Characters missing from the terminal's encoding become `?`.
    """
    emit_verbatim(map(escape_controls, lines))


def emit_fitted(
    lines: Iterable[str], *, delimited: bool = False, styles: Mapping[str, str] | None = None
) -> None:
    """Print lines as `emit` does. On a terminal, fit the lines to its width and colour them.

    Args:
        lines: lines to print, which may form prose and tables.
        delimited: whether the lines are for programs, and are printed unchanged.
        styles: style of lines by their first word. The headers of tables are bold.
    """
    if delimited or not (sys.stdout.isatty() or colour.is_enabled()):
        emit(lines)
        return
    from slurm_energy.cli.terminal_layout import fitted, is_header

    text = [escape_controls(line) for line in lines]
    if sys.stdout.isatty():
        text = fitted(text, shutil.get_terminal_size().columns)
    words = styles or {}
    for index, line in enumerate(text):
        style = colour.BOLD if is_header(text, index) else words.get(line.partition(" ")[0], "")
        line = encodable(line, sys.stdout.encoding)
        print(colour.paint(line, style) if style else line)


def emit_verbatim(lines: Iterable[str]) -> None:
    """Print lines without escaping control characters, for files and for screens with cursor movements."""
    for line in lines:
        print(encodable(line, sys.stdout.encoding))


def output_glyphs(*, ascii_only: bool) -> Glyphs:
    """Return the characters for plots and bars on standard output: block characters, or ASCII.

    ASCII is returned if the user requests it, if the encoding of the output lacks the block characters, or if
    the environment names the locale C or POSIX.

    Args:
        ascii_only: whether the user requests ASCII.
    """
    from slurm_energy.reports.plots.text_plot import ASCII, glyphs_for

    return ASCII if ascii_only or _has_ascii_locale() else glyphs_for(sys.stdout.encoding)


def _has_ascii_locale() -> bool:
    """Return whether the environment names the locale C or POSIX for characters.

    In this locale, Python writes UTF-8 all the same and sets LC_CTYPE to C.UTF-8 in its own environment
    (UTF-8 mode, PEP 538 and 540), so that neither the encoding of the output nor LC_CTYPE shows the locale.
    Without UTF-8 mode, the encoding of the output is that of the locale. An environment without a locale
    is not evidence of a terminal without UTF-8.
    """
    if not sys.flags.utf8_mode:
        return False
    if locale := os.environ.get("LC_ALL"):
        return locale in _ASCII_LOCALES
    return any(os.environ.get(name) in _ASCII_LOCALES for name in ("LC_CTYPE", "LANG"))


def emit_json(value: Any) -> None:
    """Print a JSON document in ASCII. NaN and infinities become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def print_error(error: EnergyError) -> None:
    """Print the error that ends a command on standard error."""
    label = colour.paint("error:", colour.RED, sys.stderr)
    for line in error.lines:
        text = encodable(escape_controls(line), sys.stderr.encoding)
        print(f"senergy: {label} {text}", file=sys.stderr)


def note_scope(answer: Mapping[str, Any]) -> None:
    """Print a note that rows of other users are hidden, unless the response's `scope` is `all`."""
    scope = answer.get("scope", "all")
    if scope == "all":
        return
    if scope == "accounts":
        accounts = [str(name) for name in answer.get("accounts") or []]
        account_names = ", ".join(accounts[:_MAX_LISTED]) + (", ..." if len(accounts) > _MAX_LISTED else "")
        text = (
            f"jobs of other users are not shown, except in the accounts that you coordinate: {account_names}"
        )
    else:
        text = "jobs of other users are not shown: only operators see them (controller.operators)"
    note(text)


def note(text: str) -> None:
    """Print a note on standard error: one line, which is wrapped on a terminal."""
    line = f"senergy: note: {encodable(escape_controls(text), sys.stderr.encoding)}"
    if sys.stderr.isatty():
        line = "\n".join(wrap(line, shutil.get_terminal_size().columns, hanging="  "))
    print(line.replace("note:", colour.paint("note:", colour.YELLOW, sys.stderr), 1), file=sys.stderr)


def add_parsable_options(group: argparse._ArgumentGroup) -> None:
    """Add -p and -P with the meaning of sacct.

    `args.parsable` contains the option that was used, or None.
    """
    for letter, name, trailing in (("p", "parsable", "with"), ("P", "parsable2", "without")):
        group.add_argument(
            f"-{letter}",
            f"--{name}",
            dest="parsable",
            action="store_const",
            const=letter,
            help=f"values separated by |, {trailing} a trailing |",
        )


def add_field_options(
    group: argparse._ArgumentGroup,
    *,
    short: bool = True,
    more_names: tuple[str, ...] = (),
    verbose: str = "with --helpformat: the meaning of the fields",
) -> None:
    """Add --helpformat and -v.

    Args:
        group: the group of options.
        short: also add -e as in sacct.
        more_names: further spellings of --helpformat.
        verbose: help text of the option -v.
    """
    names = (*(["-e"] if short else []), "--helpformat", *more_names)
    group.add_argument(
        *names, dest="helpformat", action="store_true", help="list the fields; with -v also their meaning"
    )
    group.add_argument("-v", "--verbose", action="store_true", help=verbose)
