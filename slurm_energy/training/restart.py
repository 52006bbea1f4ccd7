"""Start of a training program under srun.

After a node is lost, the program continues on the remaining nodes.

    python3 -m slurm_energy.training.restart --checkpoint run.ckpt -- python3 train.py

The command is meant for a batch script with `#SBATCH --no-kill`. Slurm then keeps the job when a node fails.
The program starts again on the nodes that still run tasks, and continues from its checkpoint.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from slurm_energy.errors import EXIT_CONFIG, EXIT_OK, EXIT_USAGE, EnergyError, UnavailableError, UsageError
from slurm_energy.training.allocation import RESTARTS_KEY

_PERMANENT: Final = frozenset({EXIT_USAGE, EXIT_CONFIG})
"""Exit codes of a program that would fail again."""

Run = Callable[[Sequence[str], Mapping[str, str], float | None], int]
"""Function that runs a command with an environment and a time limit in seconds, and returns its exit code."""


def run_command(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float | None) -> int:
    """Run a command and return its exit code; 124 if it was killed after `timeout_s` seconds."""
    quiet = subprocess.DEVNULL if timeout_s is not None else None
    try:
        return subprocess.run(
            argv, env=environment, timeout=timeout_s, stdin=quiet, stdout=quiet, stderr=quiet, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return 124


class RestartLoop:
    """Loop that runs a distributed program again after the failure of nodes.

    Each run uses only those nodes of the job on which tasks can still run.

    Args:
        command: command of the program.
        nodes: names of the nodes of the job.
        checkpoint: checkpoint file of the program.
        tasks_per_node: tasks on each node.
        probe_s: seconds within which a node must have run a test task.
        run: function that runs a command.
        environment: environment variables of the program.
    """

    def __init__(
        self,
        command: Sequence[str],
        nodes: Sequence[str],
        checkpoint: Path,
        *,
        tasks_per_node: int = 1,
        probe_s: float = 20.0,
        run: Run = run_command,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._command, self._nodes, self._checkpoint = list(command), list(nodes), checkpoint
        self._tasks_per_node, self._probe_s, self._run = tasks_per_node, probe_s, run
        # Variables of the batch script would override the options for the remaining nodes.
        hidden = (
            "SLURM_NNODES",
            "SLURM_JOB_NUM_NODES",
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_TASKS_PER_NODE",
        )
        dropped = {*hidden, "SLURM_NTASKS_PER_NODE", "SLURM_DISTRIBUTION"}
        self._environment = {key: value for key, value in environment.items() if key not in dropped}

    def complete(self) -> int:
        """Run the program until it ends without a loss of nodes, and return its exit code."""
        restarts = int(self._environment.get(RESTARTS_KEY, "0"))
        while True:
            before = _version(self._checkpoint)
            start_s = time.monotonic()
            code = self._run_step(restarts)
            if code == EXIT_OK or code in _PERMANENT:
                return code
            lost = [node for node in self._nodes if not self._answers(node)]
            self._nodes = [node for node in self._nodes if node not in lost]
            if not self._nodes:
                raise UnavailableError("training", "no node of the job answers", "submit the job again")
            if not lost and _version(self._checkpoint) == before:
                why = f"the program ended with exit code {code} after {time.monotonic() - start_s:.0f} s"
                raise UnavailableError(why, "no node is lost and there is no newer checkpoint")
            restarts += 1
            reason = f"lost {' '.join(lost)}" if lost else f"the program ended with exit code {code}"
            print(f"restart: {reason}; continues on {' '.join(self._nodes)}", file=sys.stderr, flush=True)

    def _run_step(self, restarts: int) -> int:
        count = len(self._nodes)
        # Slurm keeps the resources of a step that a lost node never ends, so that the next step must overlap.
        argv = ["srun", "--overlap", "--no-kill", "--kill-on-bad-exit=1", f"--nodes={count}"]
        argv += [f"--ntasks={count * self._tasks_per_node}", f"--ntasks-per-node={self._tasks_per_node}"]
        argv += [f"--nodelist={','.join(self._nodes)}", *self._command]
        return self._run(argv, {**self._environment, RESTARTS_KEY: str(restarts)}, None)

    def _answers(self, node: str) -> bool:
        """Return whether a node runs a test task within the time limit.

        A test task is needed because slurmctld notices a lost node only after SlurmdTimeout.
        """
        argv = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "true"]
        return self._run(argv, self._environment, self._probe_s) == EXIT_OK


def _version(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _job_nodes(environment: Mapping[str, str]) -> list[str]:
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError("restart", "this is no batch script of Slurm", "submit it with sbatch")
    argv = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(argv, text=True, capture_output=True, check=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError("scontrol show hostnames", str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m slurm_energy.training.restart", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint file of the program")
    parser.add_argument("--tasks-per-node", type=int, default=1, metavar="N", help="ranks on each node (1)")
    parser.add_argument(
        "--probe-s",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds in which a node must run a task (20)",
    )
    parser.add_argument("command", nargs="+", metavar="CMD", help="command of the program, after --")
    args = parser.parse_args(arguments)
    try:
        nodes = _job_nodes(os.environ)
        loop = RestartLoop(
            args.command,
            nodes,
            args.checkpoint,
            tasks_per_node=args.tasks_per_node,
            probe_s=args.probe_s,
        )
        return loop.complete()
    except EnergyError as error:
        print(f"restart: error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
