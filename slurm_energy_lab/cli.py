"""Command line of `senergy lab`, a real Slurm cluster with emulated power hardware.

The module only parses arguments and prints. Each subcommand imports the modules that it needs, because `run`
starts inside jobs and must start quickly.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.errors import EXIT_OK, ForbiddenError, UsageError
from slurm_energy_lab import model_commands, node_options, weeks_commands

if TYPE_CHECKING:
    from slurm_energy_lab.cluster.lab import Lab
    from slurm_energy_lab.cluster.layout import LabLayout
    from slurm_energy_lab.cluster.specification import LabSpec

HELP = "a real Slurm cluster with emulated power hardware on this machine"
_DIRECTORY_HELP = "the lab's directory (default: $SENERGY_LAB_DIR or /var/tmp/senergy-lab)"

_EXAMPLES = {
    "up": """\
  senergy lab up
  senergy lab up --nodes nodes.toml --set-energy agent.sampling_hz=10.0
  senergy lab up --priority portable --user games=3 --user nobody=1
  senergy lab up --speeds 1,0.6,0.3 --latency 5ms --bandwidth 1gbit""",
    "down": """\
  senergy lab down""",
    "status": """\
  senergy lab status
  senergy lab status --json""",
    "exec": """\
  senergy lab exec n1 lscpu
  senergy lab exec n1 senergy doctor""",
    "shell": """\
  senergy lab shell                     any user may; exit leaves it""",
    "env": """\
  eval "$(senergy lab env)"             this shell becomes the login node""",
    "demo": """\
  senergy lab demo
  senergy lab demo --keep --html page.html""",
    "profile": """\
  senergy lab profile --seed 7 --gpu --output unknown.toml
  printf '[[node]]\\nname = "n1"\\nprofile = "unknown.toml"\\n' > nodes.toml
  senergy lab up --nodes nodes.toml""",
    "policies": """\
  senergy lab policies
  senergy lab policies --seconds 300 --policy edp --policy energy""",
    "weeks": """\
  senergy lab weeks site --begin --days 28
  senergy lab weeks site --days 28 --study study""",
    "run": """\
  senergy lab run gemm                  in a job: sbatch --exclusive --wrap 'senergy lab run gemm'
  senergy lab run train --gpu --seconds 30 --json""",
}

EPILOG = "examples:\n" + "\n".join(_EXAMPLES.values()) + "\n\ndocs/lab.md explains the lab.\n"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `senergy lab` to its parser."""
    parser.epilog = EPILOG
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _configure_up(_add(commands, "up", "bring the lab up"))
    _add(commands, "down", "remove the lab in any state")
    status = _add(commands, "status", "show nodes and daemons")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    inside = _add(commands, "exec", "run a command inside a node, as root")
    inside.add_argument("node", metavar="NODE", help="a node of senergy lab status")
    inside.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD", help="command with its arguments")
    _add(commands, "shell", "a shell on the lab's login node")
    _add(commands, "env", "print the login node's environment, for eval")
    demo = "bring a lab up, run jobs under energy policies, report, take it down"
    _configure_demo(_add(commands, "demo", demo))
    model_commands.configure_profile(
        _add(commands, "profile", "draw the hardware profile of a node at random")
    )
    model_commands.configure_policies(
        _add(commands, "policies", "compare all energy policies on a virtual clock")
    )
    weeks_commands.configure(_add(commands, "weeks", "run a small site for weeks, within seconds"))
    model_commands.configure_kernel(
        _add(commands, "run", "inside a job: run a kernel on the emulated hardware")
    )


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    """Add a subcommand of `senergy lab` with help text and examples. Return its parser.

    All subcommands that need a lab get the option for the lab's directory.
    """
    command = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"examples:\n{_EXAMPLES[name]}",
    )
    if name not in ("run", "profile", "policies", "weeks"):
        command.add_argument("--dir", type=Path, help=_DIRECTORY_HELP)
    return command


def _configure_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--nodes", type=Path, metavar="FILE", help="TOML file of [[node]] tables: name, profile")
    up.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a line of slurm.conf")
    up.add_argument(
        "--set-energy",
        action="append",
        default=[],
        metavar="TOML",
        help="a value of energy.toml, e.g. agent.sampling_hz=10.0",
    )
    up.add_argument(
        "--cpu-share", type=float, metavar="CORES", help="real cores for all CPUs of a node together (0.45)"
    )
    node_options.configure(up)
    up.add_argument(
        "--user",
        type=_user,
        action="append",
        metavar="NAME[=SHARES]",
        help="user with an account, and the user's shares (default: nobody=1)",
    )
    up.add_argument(
        "--priority",
        choices=("off", "plugin", "portable"),
        default="off",
        help="what orders the queue: Slurm (off, default), slurmctld's plugin, or senergyctld with scontrol",
    )
    up.add_argument(
        "--slurm-energy",
        action="store_true",
        help="Slurm loads our energy plugin, so that sacct, sstat and scontrol show energy",
    )
    up.add_argument("--no-accounting", action="store_true", help="no slurmdbd and database")
    up.add_argument("--no-energy", action="store_true", help="Slurm alone, on the same emulated nodes")


def _configure_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--keep", action="store_true", help="leave the lab up (also: KEEP=1)")
    demo.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        default=Path("demo-report.html"),
        help="page to write (default: demo-report.html)",
    )


def run(args: argparse.Namespace) -> int:
    """Run one subcommand and return its exit code."""
    commands = {
        "up": _up,
        "down": _down,
        "status": _status,
        "exec": _exec,
        "shell": _shell,
        "env": _env,
        "demo": _demo,
        "profile": model_commands.profile,
        "policies": model_commands.policies,
        "weeks": weeks_commands.run,
        "run": model_commands.run,
    }
    return commands[args.command](args)


def _layout(args: argparse.Namespace) -> LabLayout:
    from slurm_energy_lab.cluster.layout import locate_lab

    return locate_lab(args.dir)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ForbiddenError(
            "senergy lab", "namespaces, FUSE and Slurm's daemons need root", "run it with sudo"
        )


def _up(args: argparse.Namespace) -> int:
    from slurm_energy_lab.cluster import lifecycle, nodes_file
    from slurm_energy_lab.cluster.specification import LabSpec

    if args.cpu_share is not None and not 0 < args.cpu_share <= 1024:
        raise UsageError(f"--cpu-share {args.cpu_share:g}", "is invalid", "from 0.001 to 1024 cores")
    energy = _energy_settings(args.set_energy)
    _require_root()
    layout = _layout(args)
    if lab := lifecycle.running_lab(layout):
        print(f"The lab is up in {layout.root}: nodes {' '.join(lab.nodes)}.")
        return EXIT_OK
    chosen: dict[str, Any] = {"nodes": nodes_file.read(args.nodes)} if args.nodes else {}
    chosen |= node_options.chosen(args, chosen.get("nodes"))
    if args.user:
        chosen["users"] = dict(args.user)
    spec = LabSpec(
        slurm=tuple(args.set),
        energy=energy,
        accounting=not args.no_accounting,
        product=not args.no_energy,
        priority=args.priority,
        slurm_energy=args.slurm_energy,
        cpu_share=args.cpu_share,
        **chosen,
    )
    lab = _start_lab(layout, spec)
    lab.detach()
    policy = " --energy-policy=powersave" if spec.product else ""
    print("Try next:")
    print(f"  {_command(args, 'shell')}")
    print(f"  sbatch --exclusive{policy} --wrap 'senergy lab run gemm'   (in that shell)")
    print(f"  {_command(args, 'exec')} {lab.nodes[0]} lscpu")
    return EXIT_OK


def _command(args: argparse.Namespace, name: str) -> str:
    """Return a subcommand of `senergy lab` for this lab, as text that users can paste into a shell.

    If the program is not in $PATH, as under `make`, the command line contains its path.
    """
    named = Path(sys.argv[0]).name == "senergy" and not shutil.which("senergy")
    program = shlex.quote(sys.argv[0]) if named else "senergy"
    directory_option = f" --dir {shlex.quote(str(args.dir))}" if args.dir else ""
    return f"{program} lab {name}{directory_option}"


def _start_lab(layout: LabLayout, spec: LabSpec) -> Lab:
    """Start a lab and print one line per startup step.

    If a step fails, print the end of its log.
    """
    from slurm_energy.slurm import plugin_build
    from slurm_energy_lab.cluster import lifecycle
    from slurm_energy_lab.cluster.lab import artifacts_for
    from slurm_energy_lab.cluster.startup import StepError

    if spec.product and (absent := artifacts_for(spec).absent):
        print(f"Not built, left out: {', '.join(absent)} (make build)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if spec.priority == "plugin":
        plugin_build.ensure_built(lambda text: print(text, flush=True))
    start = time.monotonic()
    size = f"{len(spec.nodes)} node{'s' if len(spec.nodes) > 1 else ''}"
    print(f"Bringing up a lab of {size} in {layout.root}", flush=True)
    try:
        lab = lifecycle.up(layout, spec, lambda step, s: print(f"  {step.name:<22} {s:5.2f} s", flush=True))
    except StepError as error:
        for line in error.log_tail:
            print(f"  | {line}", file=sys.stderr)
        raise
    print(f"Up after {time.monotonic() - start:.1f} s.", flush=True)
    return lab


def _demo(args: argparse.Namespace) -> int:
    """Run the demonstration on a new lab (cluster of emulated nodes).

    The lab ends with this process unless --keep was given.
    """
    from slurm_energy_lab.cluster import lifecycle
    from slurm_energy_lab.cluster.specification import LabSpec
    from slurm_energy_lab.demo import demo_nodes, run_demo
    from slurm_energy_lab.demo_budget import OBSERVED, enforce

    if not args.html.resolve().parent.is_dir():
        raise UsageError(
            f"--html {args.html}", "there is no such directory", "the page is written at the end"
        )
    _require_root()
    layout = _layout(args)
    lab = _start_lab(layout, LabSpec(nodes=demo_nodes(), energy=OBSERVED))
    try:
        run_demo({**os.environ, **lab.environment()}, args.html.resolve(), lambda: enforce(lab))
        print(f"The page with the plots: {args.html}")
        if args.keep or os.environ.get("KEEP") == "1":
            lab.detach()
            shell, down = _command(args, "shell"), _command(args, "down")
            print(f"The lab is left up: {shell} to look around, {down} to end it.")
            return EXIT_OK
    except BaseException:
        lifecycle.down(layout)
        raise
    return _down(args)


def _energy_settings(settings: list[str]) -> dict[str, Any]:
    import tomllib  # imported here because `run` must start quickly

    from slurm_energy_lab.cluster.configuration import merged

    tables: dict[str, Any] = {}
    for setting in settings:
        try:
            tables = merged(tables, tomllib.loads(setting))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            todo = """text needs quotes, as in --set-energy 'cluster.name="lab"'"""
            raise UsageError(f"--set-energy {setting!r}", f"is not a line of TOML ({error})", todo) from None
    return tables


def _user(text: str) -> tuple[str, int]:
    """Parse `NAME` or `NAME=SHARES`, the value of an option, and return the user name and the raw shares."""
    name, _, shares = text.partition("=")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name) or not re.fullmatch(r"(\d{1,6})?", shares):
        raise UsageError(f"--user {text!r}", "is not NAME or NAME=SHARES", "e.g. --user games=3")
    return name, int(shares or 1)


def _down(args: argparse.Namespace) -> int:
    from slurm_energy_lab.cluster import lifecycle

    _require_root()
    layout = _layout(args)
    was_there = lifecycle.down(layout)
    print(f"The lab in {layout.root} is gone." if was_there else f"There is no lab in {layout.root}.")
    return EXIT_OK


def _status(args: argparse.Namespace) -> int:
    from slurm_energy_lab.cluster.lab import find_lab

    _require_root()
    status = find_lab(_layout(args)).status()
    if args.json:
        print(json.dumps(status, indent=1))
        return EXIT_OK
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["started"]))
    print(f"Lab in {status['directory']}, up since {since}")
    for name, pid in status["daemons"].items():
        print(f"  {name:<12} {_running(pid)}")
    print(f"{'NODE':<12} {'PROFILE':<20} {'STATE':<12} DAEMONS")
    for name, node in status["nodes"].items():
        down = [daemon for daemon, pid in node["daemons"].items() if pid is None]
        daemons = "not running: " + " ".join(down) if down else "all running"
        print(f"{name:<12} {node['profile']:<20} {node['state'] or 'unknown':<12} {daemons}")
    return EXIT_OK


def _running(pid: int | None) -> str:
    return f"running, pid {pid}" if pid else "not running"


def _exec(args: argparse.Namespace) -> int:
    from slurm_energy_lab.cluster.lab import find_lab

    _require_root()
    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not argv:
        raise UsageError("senergy lab exec", "no command given", "senergy lab exec n1 lscpu")
    lab = find_lab(_layout(args))
    command = lab.exec_argv(args.node, argv)
    os.execvpe(command[0], command, {**os.environ, **lab.environment()})


def _shell(args: argparse.Namespace) -> int:
    from slurm_energy_lab.cluster.lab import find_lab

    lab = find_lab(_layout(args))
    shell = os.environ.get("SHELL") or "/bin/sh"
    argv, extra = [shell, "-i"], {}
    if Path(shell).name == "bash":
        argv = [shell, "--rcfile", str(lab.layout.etc / "bashrc"), "-i"]
        extra["SENERGY_LAB_PATH"] = lab.environment()["PATH"]
    else:
        extra["PS1"] = "(lab) $ "
    os.execvpe(shell, argv, {**os.environ, **lab.environment(), **extra})


def _env(args: argparse.Namespace) -> int:
    from slurm_energy_lab.cluster.lab import find_lab

    for key, value in find_lab(_layout(args)).environment().items():
        print(f"export {key}={shlex.quote(value)}")
    return EXIT_OK
