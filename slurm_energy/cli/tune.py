"""Command `senergy tune`, which shows what the controller has learned about programs.

The command shows the response of programs to settings. Users can also fix (pin) the operating point of a
program.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from slurm_energy.cli import connection, tune_characterise
from slurm_energy.cli.output import emit_fitted, emit_json, note_scope
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError
from slurm_energy.quantities import shown

HELP = "learned response of programs to settings, and operating points fixed by hand"

EPILOG = """\
senergyctld learns how a program responds to settings from its finished runs. A PROGRAM is the fingerprint of
a batch script and its arguments, or the value of --energy-model. --script computes the fingerprint from the
file. You see and change your own programs; operators see and change those of all users (--user). --site
selects the site's characterisation of its hardware instead, which belongs to the operators.

`characterise` measures a kind of hardware with reference kernels, for programs about which nothing is known.

`forget` deletes the learned runs of a program, so that learning starts again. `pin` fixes its operating
point: further runs use it without a search, within the limits of the site. `unpin` removes the pin.

Exit code 5: the program belongs to another user. Exit code 6: nothing is known about the program.

examples:
  senergy tune show
  senergy tune show --script train.sh
  senergy tune show 0123456789abcdef --hardware 'NVIDIA A40' --json
  senergy tune show --site
  senergy tune forget --script train.sh
  senergy tune forget --all --user alice
  senergy tune pin --script train.sh --gpu-cap 250
  senergy tune pin bert-base --untuned
  senergy tune unpin --script train.sh
  senergy tune characterise -w gpu01 --gpu
  senergy tune characterise -w cpu01 --cpu-freq 1200..3000:300 --time 15 -- -p all
  senergy tune characterise -w gpu01 --gpu --kernel 'compute=/opt/bench/gemm --seconds {seconds}'
"""

_PATH = "/v1/tuning"


def configure(parser: CommandParser) -> None:
    """Add the actions and their options to `senergy tune`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="show|forget|pin|unpin|characterise"
    )
    show = actions.add_parser("show", help="programs with their response curves and pins")
    forget = actions.add_parser("forget", help="delete what was learned about a program")
    pin = actions.add_parser("pin", help="fix the operating point of a program")
    unpin = actions.add_parser("unpin", help="remove the pin of a program")
    for action in (show, forget, pin, unpin):
        _add_program_options(action)
    for action in (show, forget):
        action.add_argument("--site", action="store_true", help="the site's characterisation of its hardware")
    forget.add_argument("--all", action="store_true", help="all programs of the user")
    _add_point_options(pin)
    tune_characterise.configure(actions.add_parser("characterise", help=tune_characterise.HELP))


def _add_program_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", nargs="?", help="fingerprint, or --energy-model")
    parser.add_argument(
        "--script", metavar="FILE", type=Path, help="batch script whose fingerprint is the program"
    )
    parser.add_argument(
        "--script-arguments", metavar="ARG", nargs="*", default=[], help="arguments of the script"
    )
    parser.add_argument("--user", metavar="NAME", help="owner of the program (default: yourself)")
    parser.add_argument(
        "--hardware", metavar="NAME", help="kind of hardware, as `senergy tune show` names it"
    )
    parser.add_argument("--json", action="store_true", help="print the controller's response as JSON")
    connection.add_config_option(parser)


def _add_point_options(parser: argparse.ArgumentParser) -> None:
    point = parser.add_argument_group("operating point")
    point.add_argument("--gpu-cap", metavar="WATTS", help="power limit of each GPU")
    point.add_argument("--gpu-clock", metavar="MHZ", help="upper bound of the graphics clock of each GPU")
    point.add_argument("--power-profile", metavar="NAME", help="NVIDIA workload power profile of each GPU")
    point.add_argument("--package-cap", metavar="WATTS", help="power limit of each processor package")
    point.add_argument("--cpu-freq", metavar="MHZ", help="upper frequency bound of every CPU")
    point.add_argument(
        "--untuned", action="store_true", help="the settings that were in force before the job"
    )


def run(args: argparse.Namespace) -> int:
    """Execute the chosen action of `senergy tune`.

    The action `characterise` measures a node. All other actions send a request to the controller and print
    the response.
    """
    if args.action == "characterise":
        return tune_characterise.run(args)
    client = connection.connect(args)
    program = _program(args)
    if args.action == "show":
        values = {"user": args.user, "workload": program, "hardware": args.hardware}
        query = {key: value for key, value in values.items() if value}
        answer = client.get(_PATH, query | ({"site": "1"} if args.site else {}))
        _show(answer, args)
        return EXIT_OK
    body: dict[str, Any] = {"user": args.user, "workload": program, "hardware": args.hardware}
    if args.action == "pin":
        body["point"] = _point(args)
    if args.action == "forget":
        body |= {"all": args.all, "site": args.site}
    if args.action != "forget" and program is None:
        raise UsageError(f"senergy tune {args.action}", "no program given", "name it, or give --script FILE")
    body = {key: value for key, value in body.items() if value is not None}
    answer = client.post(f"{_PATH}/{args.action}", body)
    if args.json:
        emit_json(answer)
        return EXIT_OK
    from slurm_energy.reports.tuning_page import change_lines

    emit_fitted(change_lines(args.action, answer))
    return EXIT_OK


def _show(answer: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        emit_json(answer)
        return
    if not answer.get("programs"):
        todo = "a run is learned some seconds after Slurm's accounting has its end"
        if (program := _program(args)) is not None:
            raise NotFoundError(f"program {shown(program)}", "nothing has been learned about it", todo)
        emit_fitted([f"nothing has been learned yet: {todo}"])
        return
    from slurm_energy.reports.tuning_page import program_lines

    if not args.site:
        note_scope(answer)
    emit_fitted(program_lines(answer))


def _program(args: argparse.Namespace) -> str | None:
    """Return the name of the program; None if no program is given.

    Raises:
        UsageError: a program and a script are given, or the script cannot be read.
    """
    if args.script is None:
        if args.script_arguments:
            raise UsageError("--script-arguments", "given without --script")
        return str(args.program) if args.program else None
    if args.program:
        raise UsageError("--script", "given together with a program", "give one of the two")
    from slurm_energy.slurm.script_fingerprint import fingerprint

    try:
        content = args.script.read_bytes()
    except OSError as error:
        raise UsageError(f"--script {args.script}", error.strerror or str(error)) from None
    return fingerprint(content, [os.fsencode(argument) for argument in args.script_arguments])


def _point(args: argparse.Namespace) -> dict[str, Any]:
    """Return the operating point that the options of `senergy tune pin` describe, as JSON.

    Raises:
        UsageError: no value is given, a value is malformed, or a value is given with --untuned.
    """
    from slurm_energy.quantities import parse_megahertz, parse_watts

    point: dict[str, Any] = {}
    for key, text, parse, flag in (
        ("gpu_limit_watts", args.gpu_cap, parse_watts, "--gpu-cap"),
        ("gpu_clock_mhz", args.gpu_clock, parse_megahertz, "--gpu-clock"),
        ("package_limit_watts", args.package_cap, parse_watts, "--package-cap"),
        ("cpu_max_mhz", args.cpu_freq, parse_megahertz, "--cpu-freq"),
    ):
        if text is not None:
            point[key] = parse(text, flag)
    if args.power_profile is not None:
        from slurm_energy.devices.gpu.power_profiles import canonical_name

        name = canonical_name(args.power_profile)
        if name is None:
            raise UsageError(f"--power-profile: '{shown(args.power_profile)}' is no workload power profile")
        point["gpu_power_profile"] = name
    if args.untuned and point:
        raise UsageError("--untuned", "given together with a value", "give one of the two")
    if not (args.untuned or point):
        raise UsageError("senergy tune pin", "no operating point given", "give --gpu-cap, or --untuned")
    return point
