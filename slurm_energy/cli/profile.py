"""`senergy profile`: measure a command, or collect the measurements of a program's profiling sections."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.quantities import shown
from slurm_energy.safe_text import encodable

if TYPE_CHECKING:
    from slurm_energy.profiling import Section

HELP = "energy of a command, or of the sections of a program"
EXIT_NOT_EXECUTABLE, EXIT_NO_COMMAND = 126, 127
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)

EPILOG = """\
Inside a job the agent of the node measures for the owner of the job, without root. Outside a job the
counters are read directly, which requires permission to read them. The energy is that of the whole job on
this node (of the whole node outside Slurm) while the command ran. The exit code is that of the command;
127: no such command, 126: it cannot be executed, 128 + N: ended by signal N. One line is written to
standard error, and one line per section to a file per process in --dir, $SENERGY_PROFILE_DIR or
senergy-profile.JOBID.

examples:
  senergy profile -- ./solver input.dat
  srun senergy profile --name solver -- ./solver      each rank writes a line
  senergy profile --gather senergy-profile.12         one line per section of job 12
  senergy profile --gather senergy-profile.12 --ranks one line per rank and run of a section
  senergy profile --gather senergy-profile.12 --csv > sections.csv
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy profile`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--name", metavar="TEXT", help="with CMD: name of the section (default: name of the program)"
    )
    parser.add_argument("--dir", metavar="DIR", type=Path, help="with CMD: directory for the files")
    parser.add_argument("--quiet", action="store_true", help="with CMD: no line on standard error")
    parser.add_argument("--gather", metavar="DIR", type=Path, help="summarise the files of a directory")
    parser.add_argument(
        "--ranks", action="store_true", help="with --gather: one line per run of a section and process"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="with --gather: print summaries and all lines as JSON"
    )
    form.add_argument(
        "--csv",
        action="store_true",
        help="with --gather: print CSV, one row per run of a section and process",
    )
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="command with its arguments")


def run(args: argparse.Namespace) -> int:
    """Execute `senergy profile` and print the result.

    The command either measures another command, or collects the measurements that programs have made of
    their own sections.
    """
    argv = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.gather is not None:
        if argv:
            raise UsageError("senergy profile", "--gather takes no command")
        return _gather(args)
    if not argv:
        raise UsageError("senergy profile", "no command given", "senergy profile -- ./solver")
    if args.json or args.csv or args.ranks:
        raise UsageError("--json, --csv, --ranks", "they require --gather")
    return _measure(args, argv)


def _measure(args: argparse.Namespace, argv: list[str]) -> int:
    from slurm_energy.profiling import flush, process_identity, profile

    if args.dir is not None:
        os.environ[process_identity.DIRECTORY_KEY] = str(args.dir.absolute())
    elif (folder := process_identity.profile_directory(process_identity.current_process())) is not None:
        os.environ[process_identity.DIRECTORY_KEY] = str(
            folder.absolute()
        )  # sections inside the command write there too
    with profile(args.name or Path(argv[0]).name[:200] or "command") as section:
        code = _run(argv)
    flush()
    if not args.quiet:
        sys.stdout.flush()
        print(f"senergy profile: {_text(section)}", file=sys.stderr)
    return code


def _run(argv: list[str]) -> int:
    """Run a command, forward signals to the command, and return its exit code."""
    with _forwarded_signals() as set_child:
        try:
            child = subprocess.Popen(argv)
        except FileNotFoundError:
            print(f"senergy: error: {shown(argv[0], 200)}: no such command", file=sys.stderr)
            return EXIT_NO_COMMAND
        except OSError as error:
            print(f"senergy: error: {shown(argv[0], 200)}: {error.strerror}", file=sys.stderr)
            return EXIT_NOT_EXECUTABLE
        set_child(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarded_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Forward signals to the child process, including signals received before it was started.

    A signal that the caller of this program ignores is not caught here. The child inherits this setting and
    therefore ignores the signal, too.
    """
    early: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        if children:
            children[0].send_signal(number)
        else:
            early.append(number)

    def set_child(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    def ignore(number: int, _: FrameType | None) -> None:
        """Ignore a signal in this process.

        The terminal sends the signal to the started program as well.
        """

    handlers = dict.fromkeys(_FORWARDED_SIGNALS, forward) | {signal.SIGINT: ignore}
    handled = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, handlers[number]) for number in handled}
    try:
        yield set_child
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _text(section: Section) -> str:
    joules, watts = section.total_joules, section.mean_watts
    parts = [f"{name} {_number(value, 'J')}" for name, value in section.energy_joules.items()]
    whole = f"{_number(joules, 'J')}, {section.seconds:.3f} s, {_number(watts, 'W')}"
    return f"{section.name}: {whole}" + (f" ({', '.join(parts)})" if parts else "")


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.2f} {unit}"


def _gather(args: argparse.Namespace) -> int:
    from slurm_energy.profiling.summary import read_lines, summarise, to_csv

    lines = read_lines(args.gather)
    summaries = summarise(lines)
    if args.csv:
        sys.stdout.write(encodable(to_csv(lines), sys.stdout.encoding))
    elif args.json:
        emit_json({"sections": [summary.to_json() for summary in summaries], "lines": lines})
    elif args.ranks:
        head = f"{'NODE':<12} {'RANK':>5} {'PID':>8} {'SECONDS':>10} {'JOULES':>12} {'WATTS':>9}  SECTION"
        emit([head, *map(_rank_row, lines)])
    else:
        head = f"{'CALLS':>7} {'RANKS':>6} {'NODES':>6} {'SECONDS':>10} {'JOULES':>12}  SECTION"
        emit([head, *map(_summary_row, summaries)])
    return EXIT_OK


def _rank_row(line: dict[str, Any]) -> str:
    rank = "-" if line.get("rank") is None else str(line["rank"])
    figures = (
        f"{line['seconds']:>10.3f} {_cell(line.get('total_joules')):>12} {_cell(line.get('mean_watts')):>9}"
    )
    failed = f"  ended by {line['failed']}" if line.get("failed") else ""
    process = f"{line.get('node') or '-':<12} {rank:>5} {line['pid']:>8}"
    return f"{process} {figures}  {'/'.join(line['path'])}{failed}"


def _summary_row(summary: Any) -> str:
    figures = f"{summary.calls:>7} {summary.processes:>6} {summary.nodes:>6} {summary.seconds:>10.3f}"
    return f"{figures} {_cell(summary.total_joules):>12}  {'/'.join(summary.path)}"


def _cell(value: Any) -> str:
    return "unknown" if not isinstance(value, (int, float)) else f"{value:.2f}"
