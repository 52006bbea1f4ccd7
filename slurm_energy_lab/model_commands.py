"""Subcommands of `senergy lab` that start no lab: `profile`, `policies` and `run`.

Each subcommand imports the modules that it needs, because `run` must start quickly.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion_or_list

if TYPE_CHECKING:
    from slurm_energy_lab.policy_comparison import PolicyRun

_MAX_SECONDS = 86400


def configure_profile(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy lab profile`."""
    parser.add_argument("--seed", type=int, required=True, help="seed of the random numbers")
    parser.add_argument("--gpu", action="store_true", help="a node with GPUs")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: print it)")


def configure_policies(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy lab policies`."""
    parser.description = (
        "Run the programs of the demonstration under every energy policy, on emulated nodes and a virtual "
        "clock, and print a Markdown table: change of time, energy and EDP in percent against monitor."
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=1800.0, metavar="S", help="run time at full speed (default: 1800)"
    )
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help="compare this policy only; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with all runs")


def configure_kernel(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy lab run`."""
    parser.description = "Run a kernel in the emulated device's own time, on the job's CPUs or GPUs."
    parser.add_argument(
        "kernel",
        metavar="KERNEL",
        help="gemm, spmv, triad, stencil, monte_carlo, dist or train, or a program of several phases: "
        "pipeline, checkpointed, solver or data_parallel",
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "--cpu",
        dest="device",
        action="store_const",
        const="cpu",
        default="cpu",
        help="on the job's CPUs (default)",
    )
    device.add_argument("--gpu", dest="device", action="store_const", const="gpu", help="on the job's GPUs")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--size", type=float, metavar="N", help="problem size (default: about 10 s at full speed)"
    )
    size.add_argument("--seconds", type=float, metavar="S", help="size that takes so long at full speed")
    parser.add_argument(
        "--report-progress", action="store_true", help="report completed units to the node's agent"
    )
    parser.add_argument(
        "--signals",
        type=_signals,
        default={},
        metavar="NAME=VALUE,...",
        help="signals that NVML and the job's control group show meanwhile, such as sm_active_percent=20,"
        "io_pressure_percent=60",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _signals(text: str) -> dict[str, float]:
    """Return the signals (names with numbers) that a command-line option gives as NAME=VALUE,...

    This function only checks the syntax. The emulator checks the names and values.
    """
    try:
        pairs = (pair.split("=") for pair in text.split(","))
        return {name: float(value) for name, value in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a list NAME=VALUE,...") from None


def _seconds(text: str) -> float:
    """Parse the value of a command-line option in seconds.

    It must be above 0 and at most a day.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number above 0, at most {_MAX_SECONDS}")
    return seconds


def profile(args: argparse.Namespace) -> int:
    """Print or write a node profile drawn at random."""
    from slurm_energy_lab.cluster.configuration import toml_document
    from slurm_energy_lab.model import draw_profile

    text = toml_document(draw_profile(args.seed, args.gpu))
    if args.output is None:
        print(text, end="")
        return EXIT_OK
    try:
        args.output.write_text(text)
    except OSError as error:
        raise UsageError(f"--output {args.output}", error.strerror or str(error)) from None
    print(f"Profile {args.output}: drawn with seed {args.seed}.")
    return EXIT_OK


def policies(args: argparse.Namespace) -> int:
    """Run the lab's programs under several energy policies, and print a table that compares the runs."""
    from slurm_energy.policies.catalogue import BUILT_IN
    from slurm_energy_lab.policy_comparison import compare, table

    names = tuple(args.policy or BUILT_IN)
    for name in names:
        if name not in BUILT_IN:
            todo = suggestion_or_list(name, BUILT_IN)
            raise UsageError(f"--policy: '{shown(name)}' is not a built-in policy", todo=todo)

    def show(run: PolicyRun) -> None:
        print(f"{run.kernel} on {run.machine}, {run.policy}: {run.seconds:.0f} s", file=sys.stderr)

    runs = compare(args.seconds, policies=names, on_run=show)
    print(json.dumps({"runs": [run.to_json() for run in runs]}) if args.json else table(runs))
    return EXIT_OK


def run(args: argparse.Namespace) -> int:
    """Run a compute kernel inside a job and print the result."""
    from slurm_energy_lab.job import run_in_job

    result = run_in_job(
        *(args.kernel, args.device, args.size, args.seconds),
        report_progress=args.report_progress,
        signals=args.signals,
    )
    if args.json:
        print(json.dumps(result))
        return EXIT_OK
    joules = " ".join(f"{name} {value:.0f} J" for name, value in result["energy_joules"].items())
    rate = result["flops"] / result["seconds"] if result["seconds"] else 0.0
    print(f"{args.kernel} on {args.device}: {result['seconds']:.3f} s, {rate / 1e9:.1f} GFLOP/s, {joules}")
    return EXIT_OK
