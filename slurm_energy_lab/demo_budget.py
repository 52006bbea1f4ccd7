"""Last part of the demonstration: a power budget that drops while jobs run, and rises again."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.demo_commands import DemoJob, Shell, follow, records, submit

BUDGET: Final = "site"
_HIGH_WATTS: Final = 20e3
"""Configured limit, above the nameplate power of the lab."""
OBSERVED: Final[dict[str, Any]] = {
    "budget": {"mode": "observe", "admission": "off"},
    "budgets": [{"name": BUDGET, "cluster": True, "watts": _HIGH_WATTS}],
}
"""Tables of energy.toml with which the lab begins."""

JOBS: Final = tuple(
    DemoJob(kernel, "gpu", node, machine, "monitor", gpus=gpus, size_s=size_s, purpose="budget")
    for kernel, node, machine, gpus, size_s in (
        ("gemm", "n2", "a100", 4, 40.0),
        ("train", "n3", "rtx6000", 8, 40.0),
        ("triad", "n4", "h100", 8, 40.0),
    )
)
_DROP: Final = 0.7
_PHASE_S: Final = 18.0
_START_TIMEOUT_S: Final = 60.0
_SETTLE_S: Final = 8.0
_SAMPLE_S: Final = 10.0


def enforce(lab: Lab) -> None:
    """Change the configuration of the demonstration cluster: senergyctld then enforces the budget.

    The budget is the power budget of the demonstration. The cluster consists of emulated nodes (lab).
    """
    lab.set_energy({"budget": {"mode": "enforce"}})


def run_budget_step(
    shell: Shell, begin_enforcing: Callable[[], None], say: Callable[[str], None]
) -> tuple[list[int], str]:
    """Demonstrate a power budget: lower the power limit of the emulated cluster while jobs run.

    The function starts jobs on three nodes, lowers the limit while they run, and raises it again.

    Args:
        shell: runner of commands on the login node of the lab (cluster of emulated nodes).
        begin_enforcing: function that switches senergyctld from observing to enforcing the budget.
        say: function that is called with each line of output.

    Returns:
        The ids of the jobs, and the result in one line.

    Raises:
        EnergyError: a command failed, or the jobs did not start or end within the timeout.
    """
    say("\nA power budget: senergyctld now keeps the limit that it only observed so far (mode = 'enforce').")
    begin_enforcing()
    _wait(shell, lambda state: state["mode"] == "enforce" and bool(state["decided_unix_s"]), "the mode")
    with tempfile.TemporaryDirectory(prefix="senergy-demo-") as folder:
        ids = [submit(shell, job, Path(folder)) for job in JOBS]
        _wait(shell, lambda state: {*ids} <= {job["job_id"] for job in state["jobs"]}, "the jobs")
        time.sleep(_PHASE_S)
        before = _budget(shell)
        limit = round(max(_DROP * before["measured_watts"], 1.05 * before["floor_watts"]), -2)
        set_unix_s = time.time()
        _say_run(shell, say, "senergy", "budget", "set", BUDGET, f"{limit:.0f}W", "--reason", "demonstration")
        time.sleep(_SETTLE_S)
        during = _budget(shell)
        _say_run(shell, say, "senergy", "budget", "show", "--jobs")
        _say_run(shell, say, "senergy", "budget", "explain", str(ids[0]))
        time.sleep(max(0.0, _PHASE_S - _SETTLE_S))
        _say_run(shell, say, "senergy", "budget", "set", BUDGET, "--configured")
        follow(shell, len(ids), say)
    records(shell, ids)
    _say_run(shell, say, "senergy", "budget", "history", BUDGET, "-S", "now-3minutes")
    return ids, result_line(before, during, limit, _over_s(shell, set_unix_s))


def result_line(before: dict[str, Any], during: dict[str, Any], limit_watts: float, over_s: float) -> str:
    """Return one line with the result of the demonstration of power budgets.

    Args:
        before: state of the budget before the limit was lowered.
        during: state of the budget while the limit was low.
        limit_watts: the lowered limit of the budget in watts.
        over_s: seconds in which the measured power was above a limit.
    """
    limit, *measured = (
        f"{watts / 1e3:.1f} kW" for watts in (limit_watts, before["measured_watts"], during["measured_watts"])
    )
    return (
        f"Power budget of {limit} while three jobs ran: the cluster went from {' to '.join(measured)} and was"
        f" above the limit for {over_s:.1f} s after the step. No job was stopped."
    )


def _over_s(shell: Shell, begin_unix_s: float) -> float:
    """Return for how many seconds since `begin_unix_s` the power was above the budget's limit."""
    window = ("-S", f"uts{begin_unix_s - _SAMPLE_S:.0f}", "--json")
    (series,) = json.loads(shell("senergy", "budget", "history", BUDGET, *window))["series"]
    return math.fsum(series["over_s"])


def _say_run(shell: Shell, say: Callable[[str], None], *command: str) -> None:
    say("\n$ " + " ".join(command))
    say(shell(*command).rstrip())


def _state(shell: Shell) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(shell("senergy", "budget", "show", "--jobs", "--json"))
    return state


def _budget(shell: Shell) -> dict[str, Any]:
    rows: list[dict[str, Any]] = _state(shell)["budgets"]
    return next(row for row in rows if row["name"] == BUDGET)


def _wait(shell: Shell, is_reached: Callable[[dict[str, Any]], bool], what: str) -> None:
    begin = time.monotonic()
    while not is_reached(_state(shell)):
        if time.monotonic() - begin > _START_TIMEOUT_S:
            raise EnergyError(f"demo: waited for {what} under the budget", f"{_START_TIMEOUT_S:g} s")
        time.sleep(0.5)
