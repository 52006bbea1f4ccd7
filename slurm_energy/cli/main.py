"""Entry point of `senergy`: finds the subcommand's module and turns errors into one line and an exit code.

A subcommand is a module in this package with `HELP` (one line), `configure(parser)` and `run(args) -> int`.
It is imported only when it is used, so that short commands start fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from slurm_energy import __version__
from slurm_energy.cli.printing import complain
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, EnergyError

SUBCOMMANDS = {
    "acct": "energy of finished jobs, in sacct's manner",
    "job": "the energy label of one job",
    "report": "energy, throughput and completion times of a cluster's jobs, in sreport's manner",
    "prio": "the order of the queue: each job's place, score and prediction, in sprio's manner",
    "share": "energy used and shares of accounts and users, in sshare's manner",
    "policies": "energy policies and the bounds of their values",
    "status": "state of the controller and of this node's agent",
    "spool": "records that this node keeps for the controller; send refused ones again",
    "top": "live watts of this node, its jobs and components",
    "doctor": "what this compute node has, what it lacks, what that costs and what fixes it",
    "predict": "time, watts and energy of a job before it runs",
    "calibrate": "fit the prediction of one kind of GPU to measured training steps",
    "profile": "measure a command, or gather what a program's sections measured",
    "simulate": "what scheduling policies would do with a workload",
    "build-plugins": "build slurmctld's plugin for the Slurm that is installed here",
    "config": "check, show or write an example of the configuration",
    "template": "batch scripts and site files from templates",
    "lab": "a real Slurm cluster with emulated power hardware on this machine",
}

EPILOG = """exit codes: 0 ok, 1 failure, 2 bad usage or input, 3 configuration, 4 daemon, device or
optional package unavailable, 5 forbidden, 6 not found, 7 already running"""


def module_name(command: str) -> str:
    """Return the module of a subcommand."""
    return f"slurm_energy.cli.{command.replace('-', '_')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except EnergyError as error:
        complain(error)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in SUBCOMMANDS:
        module = importlib.import_module(module_name(name))
        parser = argparse.ArgumentParser(
            prog=f"senergy {name}",
            description=module.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(parser)
        parser.epilog = "\n\n".join(filter(None, [(parser.epilog or "").rstrip(), EPILOG]))
        return int(module.run(parser.parse_args(arguments[1:])))
    if name in ("-V", "--version"):
        print(f"senergy {__version__}")
        return EXIT_OK
    listing = "\n".join(f"  {command:<13} {text}" for command, text in SUBCOMMANDS.items())
    usage = f"usage: senergy COMMAND [options]\n\ncommands:\n{listing}"
    page = f"{usage}\n\nsenergy COMMAND --help explains each.\n\n{EPILOG}"
    if name in ("-h", "--help", "help"):
        print(page)
        return EXIT_OK
    if name:
        print(f"senergy: error: unknown command '{name[:40]}'", file=sys.stderr)
    print(page, file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
