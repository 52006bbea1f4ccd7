"""Generator of the man pages: `python -m slurm_energy.cli.man DIRECTORY`.

The pages are made from the parsers of the commands and daemons and from the schema of the configuration.
Their date is SOURCE_DATE_EPOCH, else today. argparse-manpage was not used, because its pages lack the
descriptions that apropos needs, and because it joins the lines of examples.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.cli import roff
from slurm_energy.cli.main import EPILOG, overview
from slurm_energy.cli.reference import COMMANDS, is_listed, option_value, parser_of
from slurm_energy.command_line.help_page import MAX_COLUMNS
from slurm_energy.config import schema_document
from slurm_energy.errors import EXIT_OK, EXIT_USAGE

_MANUAL: Final = "Energy of Slurm jobs"
_FILES: Final = {
    "/etc/slurm/energy.toml": "Configuration, see energy.toml(5).",
    "/etc/slurm/energy-templates": "Templates of the site for senergy template.",
    "/run/senergyctld/policies": "Policies and bounds for sbatch, written by senergyctld.",
    "/run/senergy/agent.sock": "Socket of senergyd.",
    "/var/lib/senergy/agent": "State and undelivered records of senergyd.",
    "/var/lib/senergyctld": "State and database of senergyctld.",
}
_ENVIRONMENT: Final = {
    "SENERGY_CONFIG": "Configuration file, instead of /etc/slurm/energy.toml.",
    "COLUMNS": "Width of help pages and tables, instead of that of the terminal.",
    "NO_COLOR": "If not empty, no colour on terminals.",
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of every page."""
    yield "senergy.1", _text("senergy", 1, _overview())
    for command in COMMANDS:
        name = f"senergy-{command}"
        yield f"{name}.1", _text(name, 1, _command(command))
    for name, parser in _daemons():
        yield f"{name}.8", _text(name, 8, _program(parser, f"{name} - {_lower(parser.description or '')}"))
    yield "energy.toml.5", _text("energy.toml", 5, _configuration())


def _daemons() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, module in (("senergyd", "agent"), ("senergyctld", "controller")):
        yield name, import_module(f"slurm_energy.{module}.main").argument_parser()


def _text(name: str, section: int, lines: Iterator[str]) -> str:
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    date = datetime.fromtimestamp(int(seconds), UTC) if seconds else datetime.now(UTC)
    head = roff.title(name, section, f"{date:%Y-%m-%d}", f"slurm-energy {__version__}", _MANUAL)
    return "\n".join([head, ".nh", ".ad l", *roff.without_empty_breaks(lines), ""])


def _overview() -> Iterator[str]:
    yield from (roff.section("Name"), r"senergy \- energy of Slurm jobs: measure, predict and save it")
    yield from (roff.section("Synopsis"), r"\fBsenergy\fR [\fB\-\-color\fR \fIWHEN\fR] \fICOMMAND\fR")
    yield r"[\fIOPTION\fR]..."
    yield roff.section("Description")
    yield from roff.paragraph("senergy shows and controls the energy of jobs on a Slurm cluster.")
    yield from roff.paragraph("Each command has a page of its own, such as senergy-acct(1).")
    groups = re.split(r"\n\n", overview(MAX_COLUMNS * 10))
    yield roff.section("Commands")
    for row in _rows(next(group for group in groups if group.startswith("commands:"))):
        yield from roff.tagged(roff.bold(f"senergy-{row[0]}") + "(1)", row[1])
    yield roff.section("Options")
    for row in _rows(next(group for group in groups if group.startswith("options"))):
        yield from roff.tagged(roff.bold(row[0]), row[1])
    yield from _closing(["senergyd(8)", "senergyctld(8)", "energy.toml(5)", "sbatch(1)"])


def _rows(group: str) -> Iterator[tuple[str, str]]:
    from slurm_energy.command_line.help_text import blocks

    for row in blocks(group)[0][0].rows:
        yield row.term, row.explanation


def _command(command: str) -> Iterator[str]:
    parser = parser_of(command)
    yield from _program(parser, f"senergy-{command} - {parser.description}")
    if command == "acct":
        yield from _fields()


def _program(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """Yield the sections of the man page of a command or daemon."""
    described, examples = roff.body(parser.epilog or "")
    subcommands = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    yield from (roff.section("Name"), roff.escape(name).replace(r" \- ", " \\- ", 1))
    yield from (roff.section("Synopsis"), *_synopsis(parser, subcommands))
    yield roff.section("Description")
    yield from roff.paragraph(_sentence(parser.description or ""))
    yield from described
    yield roff.section("Options")
    yield from _options(parser)
    if subcommands:
        yield roff.section("Commands")
    for action in subcommands:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for child_name, child in action.choices.items():
            yield roff.subsection(f"{parser.prog} {child_name}")
            yield from roff.paragraph(_sentence(helps.get(child_name, "")))
            yield from _options(child)
    if examples:
        yield from (roff.section("Examples"), *examples)
    yield from _closing(["senergy(1)", "energy.toml(5)"], parser.epilog or "")


def _synopsis(parser: argparse.ArgumentParser, subcommands: Sequence[Any]) -> Iterator[str]:
    for action in subcommands:
        for name, child in action.choices.items():
            yield f"{roff.bold(f'{parser.prog} {name}')} [\\fIOPTION\\fR]...{_positionals(child)}"
            yield ".br"
    if not subcommands:
        yield f"{roff.bold(parser.prog)} [\\fIOPTION\\fR]...{_positionals(parser)}"


def _positionals(parser: argparse.ArgumentParser) -> str:
    text = ""
    for action in parser._get_positional_actions():
        if is_listed(action):
            value = roff.italic(option_value(action).strip("[] "))
            is_optional = action.nargs in ("?", "*") or action.nargs == argparse.REMAINDER
            text += f" [{value}]" if is_optional else f" {value}"
            text += "..." if action.nargs in ("*", "+", argparse.REMAINDER) else ""
    return text


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the part of a manual page that describes the options of a command.

    Each group of options has a heading, except the two default groups of argparse.
    """
    for group in parser._action_groups:
        actions = [
            a
            for a in group._group_actions
            if a.help != argparse.SUPPRESS and not isinstance(a, argparse._SubParsersAction)
        ]
        if actions and group.title not in ("options", "positional arguments"):
            yield roff.subsection(f"{(group.title or '')[:1].upper()}{(group.title or '')[1:]}")
        for action in actions:
            yield from roff.tagged(_tag(action), (action.help or "").replace("%%", "%"))


def _tag(action: argparse.Action) -> str:
    value = option_value(action)
    if not action.option_strings:
        return roff.italic(value.strip())
    names = ", ".join(map(roff.bold, action.option_strings))
    is_optional = action.nargs == "?"
    value = value.strip("[] =") if is_optional else value.strip()
    shown = f"[={roff.italic(value)}]" if is_optional else f" {roff.italic(value)}"
    return names + (shown if value else "")


def _fields() -> Iterator[str]:
    """Yield the section of the man page about the fields of `senergy acct` that sacct does not have."""
    from slurm_energy.reports.acct.acct_fields import catalogue
    from slurm_energy.slurm.sacct_fields import NEWEST

    yield roff.section("Fields of energy")
    yield from roff.paragraph("The fields of sacct(1) are available, too.")
    for field in catalogue(NEWEST):
        if not field.slurm:
            yield from roff.tagged(roff.bold(field.name), field.doc)


def _configuration() -> Iterator[str]:
    yield from (roff.section("Name"), r"energy.toml \- configuration of slurm\-energy")
    yield from (roff.section("Synopsis"), r"\fI/etc/slurm/energy.toml\fR")
    yield roff.section("Description")
    yield from roff.paragraph(
        "A TOML file with the sections below, the same on every host of the cluster. All keys have defaults. "
        "The command `senergy config example` prints a file with every key, and `senergy config check` lists "
        "all errors of a file by line."
    )
    yield roff.section("Sections")
    for header, cls in schema_document.tables().items():
        yield roff.subsection(header)
        for text in "\n".join(schema_document.description(cls)).split("\n\n"):
            yield from roff.paragraph(" ".join(text.split()))
        hints = typing.get_type_hints(cls)
        for spec in dataclasses.fields(cls):
            kind = schema_document.type_name(hints[spec.name])
            default = getattr(cls(), spec.name)
            shown = "" if default is None else f" Default: {schema_document.toml(default)}."
            yield from roff.tagged(
                f"{roff.bold(spec.name)} ({roff.italic(kind)})", spec.metadata["doc"] + shown
            )
    yield from _closing(["senergy-config(1)", "senergyd(8)", "senergyctld(8)", "slurm.conf(5)"])


def _closing(see: Sequence[str], epilog: str = "") -> Iterator[str]:
    """Yield the last sections of a man page: exit status, environment, files and related pages.

    Args:
        see: other man pages to refer to.
        epilog: epilog of the command's help, which may list its exit codes.
    """
    yield roff.section("Exit status")
    own = epilog.rpartition("exit codes:")[2].split("\n\n")[0] if "exit codes:" in epilog else EPILOG
    for number, meaning in exit_codes(own):
        yield from roff.tagged(roff.bold(number), meaning)
    for heading, rows in (("Environment", _ENVIRONMENT), ("Files", _FILES)):
        yield roff.section(heading)
        for name, meaning in rows.items():
            yield from roff.tagged(roff.italic(name), meaning)
    yield from (roff.section("See also"), ", ".join(f"{roff.bold(n.split('(')[0])}({n[-2]})" for n in see))


def exit_codes(text: str) -> list[tuple[str, str]]:
    """Return each exit code in a text such as `exit codes: 0 ok, 1 failure`, with its meaning."""
    text = " ".join(text.removeprefix("exit codes:").split())
    return re.findall(r"(\d+) (.+?)(?=, \d+ |$)", text)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    if not text:
        return ""
    end = "" if text.endswith((".", ":", "...")) else "."
    return f"{text[0].upper() if text[:2].isalpha() else text[0]}{text[1:]}{end}"


def _lower(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}".rstrip(".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all man pages to the directory that the argument names."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: python -m slurm_energy.cli.man DIRECTORY", file=sys.stderr)
        return EXIT_USAGE
    directory = Path(words[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (directory / name).write_text(text, encoding="ascii")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
