"""Start of a lab (a cluster of emulated nodes) in steps, some of which run in parallel.

Each step starts as soon as the steps that it needs are ready. `daemons` declares the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy_lab.cluster.processes import SupervisorClient

POLL_S = 0.02
LOG_TAIL_LINES = 12


@dataclass(frozen=True)
class StartupStep:
    """A step of the start: a daemon to start, a task to run, or (without `argv`) an awaited condition.

    Attributes:
        name: unique name, for example `n1 slurmd` for a daemon of a node.
        log: file for the output of the process.
        argv: command of the process; empty for a condition.
        node: node in whose namespaces the process runs; None for the namespaces of the lab's daemons.
        needs: names of steps that must be ready first.
        env: additional environment variables of the process.
        ready: function that returns whether a daemon is ready. It is None for a task, because a task is ready
            when it has ended with exit code 0.
        timeout_s: seconds after which a step that is not ready fails.
    """

    name: str
    log: Path
    argv: Sequence[str] = ()
    node: str | None = None
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    timeout_s: float = 120.0


StepReport = Callable[[StartupStep, float], None]
"""Function called with a startup step that became ready, and the duration of the step in seconds."""


def ignore(step: StartupStep, took_s: float) -> None:
    """Do nothing. Callers that do not show progress pass this function as `report`."""


class StepError(UnavailableError):
    """Raised when a startup step fails.

    Attributes:
        log_tail: last lines of the log of the startup step.
    """

    def __init__(self, step: StartupStep, why: str) -> None:
        super().__init__(step.name, why)
        self.step = step
        self.log_tail = tail(step.log)


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last lines of a file; an empty list if the file is not readable."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


class Startup:
    """Execution of the steps that start a lab (cluster of emulated nodes).

    The object tracks which steps are waiting, running or ready.

    Args:
        steps: the steps to execute.
        supervisor: function that returns the supervisor of the node with a given name. For the argument
            None, the function returns the supervisor of the lab's daemons.
        environment: environment variables of every process. The variables of a step are added to these.
        report: function called with each step that becomes ready and the duration of the step in seconds.
    """

    def __init__(
        self,
        steps: Iterable[StartupStep],
        supervisor: Callable[[str | None], SupervisorClient],
        environment: Mapping[str, str],
        report: StepReport = ignore,
    ) -> None:
        self._waiting = {step.name: step for step in steps}
        self._running: dict[str, tuple[StartupStep, float]] = {}
        self._ready: dict[str, StartupStep] = {}
        self._supervisor = supervisor
        self._environment = dict(environment)
        self._report = report

    def run(self) -> None:
        """Run all startup steps.

        Raises:
            StepError: a step ended, was not ready within its timeout, or could not be started.
        """
        while self._waiting or self._running:
            self._start_ready_steps()
            self._check_running()
            time.sleep(POLL_S)

    def _start_ready_steps(self) -> None:
        for step in list(self._waiting.values()):
            if all(name in self._ready for name in step.needs):
                del self._waiting[step.name]
                self._running[step.name] = (step, time.monotonic())
                if step.argv:
                    self._spawn(step)

    def _spawn(self, step: StartupStep) -> None:
        try:
            self._supervisor(step.node).spawn(
                step.name, list(step.argv), {**self._environment, **step.env}, step.log
            )
        except EnergyError as error:
            raise StepError(step, error.why or str(error)) from None

    def _check_running(self) -> None:
        exits = self._exits()
        for name, (step, since) in list(self._running.items()):
            code = exits.get((step.node, name))
            if code is not None and (step.ready or code != 0):
                raise StepError(step, f"ended with {_exit_description(code)}")
            is_ready = step.ready() if step.ready else code == 0
            took_s = time.monotonic() - since
            if is_ready:
                del self._running[name]
                self._ready[name] = step
                self._report(step, took_s)
            elif took_s > step.timeout_s:
                raise StepError(step, f"not ready after {step.timeout_s:.0f} s")
        for name, step in self._ready.items():
            code = exits.get((step.node, name))
            if code is not None and step.ready:
                raise StepError(step, f"ended with {_exit_description(code)}")

    def _exits(self) -> dict[tuple[str | None, str], int | None]:
        steps = [*self._ready.values(), *(step for step, _ in self._running.values())]
        exits: dict[tuple[str | None, str], int | None] = {}
        for node in {step.node for step in steps if step.argv}:
            for name, child in self._supervisor(node).children().items():
                exits[node, name] = child["exit"]
        return exits


def _exit_description(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
