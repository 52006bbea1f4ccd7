"""Entry point of `senergy`: runs a subcommand and reports errors as one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli.output import print_error
from slurm_energy.cli.parser import CommandParser
from slurm_energy.cli.subcommands import listing, module_of
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, EnergyError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion

EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 128 + signal.SIGINT, 128 + signal.SIGPIPE
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

EPILOG = """exit codes: 0 ok, 1 failure, 2 bad usage or input, 3 configuration, 4 daemon, device or
optional package unavailable, 5 forbidden, 6 not found, 7 already running,
130 interrupted, 141 the output was closed by its reader"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # report write errors here, not when the interpreter exits
    except EnergyError as error:
        print_error(error)
        return error.exit_code
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _discard_output()
        print(f"senergy: error: standard output: {error.strerror}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _discard_output() -> None:
    """Discard buffered output. The interpreter would otherwise report a broken pipe when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name == "help" and len(arguments) == 2:
        name, arguments = arguments[1], [arguments[1], "--help"]
    if name in ("-V", "--version"):
        print(f"senergy {__version__}")
        return EXIT_OK
    if module := module_of(name):
        return _run(name, module, arguments[1:])
    commands = listing()
    lines = "\n".join(f"  {command:<13} {text}" for command, text in commands.items())
    usage = f"usage: senergy COMMAND [options]\n\ncommands:\n{lines}"
    page = f"{usage}\n\nsenergy COMMAND --help explains a command.\n\n{EPILOG}"
    if name in ("-h", "--help", "help"):
        print(page)
        return EXIT_OK
    if name:
        hint = suggestion(name, [*commands, "help", "--help", "--version"]) or "senergy --help lists all"
        noun = "option" if name.startswith("-") else "command"
        raise UsageError(f"unknown {noun} '{shown(name)}'", todo=hint)
    print(page, file=sys.stderr)
    return EXIT_USAGE


def _run(name: str, module: Any, arguments: list[str]) -> int:
    parser = CommandParser(
        prog=f"senergy {name}",
        description=module.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    parser.explain_actions()
    parser.epilog = "\n\n".join(filter(None, [(parser.epilog or "").rstrip(), EPILOG]))
    return int(module.run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
