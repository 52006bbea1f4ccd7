"""Entry point of `senergy`: runs a subcommand and reports errors as one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from slurm_energy.cli.output import print_error
from slurm_energy.cli.subcommands import listing, module_of
from slurm_energy.cli.version import print_version
from slurm_energy.command_line import colour
from slurm_energy.command_line.guarded import guarded
from slurm_energy.command_line.help_page import page_columns
from slurm_energy.command_line.help_text import render
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, EXIT_USAGE, EnergyError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion

EPILOG = """exit codes: 0 ok, 1 failure, 2 bad usage or input, 3 configuration,
4 daemon, device or optional package unavailable, 5 forbidden, 6 not found,
7 already running, 130 interrupted, 141 the output was closed by its reader"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    colour.choose(colour.AUTO)
    try:
        return guarded("senergy", lambda: _dispatch(arguments))
    except EnergyError as error:
        print_error(error)
        return error.exit_code


def _dispatch(arguments: list[str]) -> int:
    while arguments and arguments[0].partition("=")[0] == "--color":
        arguments = _without_color(arguments)
    name = arguments[0] if arguments else ""
    if name == "help" and len(arguments) == 2:
        name, arguments = arguments[1], [arguments[1], "--help"]
    if name in ("-V", "--version"):
        return print_version(arguments[1:])
    if module := module_of(name):
        return _run(name, module, arguments[1:])
    if name in ("-h", "--help", "help"):
        print(overview(page_columns()))
        return EXIT_OK
    if name:
        hint = suggestion(name, [*listing(), "help", "--help", "--version", "--color"])
        noun = "option" if name.startswith("-") else "command"
        raise UsageError(f"unknown {noun} '{shown(name)}'", todo=hint or "senergy --help lists all")
    print(overview(page_columns(), sys.stderr), file=sys.stderr)
    return EXIT_USAGE


def _without_color(arguments: list[str]) -> list[str]:
    """Apply the option --color, which is the first argument, and return the other arguments."""
    _, equals, when = arguments[0].partition("=")
    rest = arguments[1:] if equals else arguments[2:]
    when = when if equals else "".join(arguments[1:2])
    if when not in colour.WHEN:
        raise UsageError(f"--color: '{shown(when)}' is not one of {', '.join(colour.WHEN)}")
    colour.choose(when)
    return rest


def overview(columns: int, stream: TextIO | None = None) -> str:
    """Return the help page of `senergy`, laid out for a width in columns, with colours for `stream`."""
    commands = listing()
    width = max(map(len, commands)) + 2
    rows = "\n".join(f"  {name:<{width}}{text}" for name, text in commands.items())
    page = (
        f"usage: senergy [--color WHEN] COMMAND [options]\n\ncommands:\n{rows}\n\n"
        "senergy COMMAND --help explains a command.\n\n"
        "options of all commands:\n"
        "  -h, --help      this page, or that of a command\n"
        "  -V, --version   releases of slurm-energy, its plugin, Slurm and Python; with --json as JSON\n"
        "  --color WHEN    colour: auto (default: on terminals only), always or never; the variable\n"
        "                  NO_COLOR switches it off\n\n"
    )
    page = render(page + EPILOG, columns)
    return colour.with_bold_headings(page) if colour.is_enabled(stream) else page


def _run(name: str, module: Any, arguments: list[str]) -> int:
    parser = command_parser(name, module)
    return int(module.run(parser.parse_args(arguments)))


def command_parser(name: str, module: Any) -> CommandParser:
    """Return the parser of a subcommand, including everything that the help page of the subcommand shows."""
    parser = CommandParser(prog=f"senergy {name}", description=module.HELP)
    module.configure(parser)
    parser.complete_actions()
    parser.epilog = "\n\n".join(filter(None, [(parser.epilog or "").rstrip(), EPILOG]))
    return parser


if __name__ == "__main__":
    sys.exit(main())
