"""Access to the units of systemd on this host. Without systemd, every request fails with a one-line error."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from slurm_energy.errors import UnavailableError

_TIMEOUT_S: Final = 180.0
Execute = Callable[[Sequence[str]], "CommandResult"]


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    output: str


def execute(argv: Sequence[str]) -> CommandResult:
    """Run a command without a shell and with a time limit.

    Raises:
        UnavailableError: the command cannot be run, or took too long.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(argv[0], f"no answer within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise UnavailableError(argv[0], error.strerror or str(error)) from None
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"))


class UnitManager:
    """Access to systemd through systemctl.

    Args:
        run: function that executes a command.
        root: directory that contains run.
    """

    def __init__(self, run: Execute = execute, root: Path = Path("/")) -> None:
        self._run = run
        self.is_running = (root / "run/systemd/system").is_dir() and (
            run is not execute or shutil.which("systemctl") is not None
        )

    def exists(self, unit: str) -> bool:
        """Return whether systemd knows a unit."""
        return self._property(unit, "LoadState") not in ("", "not-found")

    def is_active(self, unit: str) -> bool:
        """Return whether a unit runs or is being started."""
        return self._property(unit, "ActiveState") in ("active", "activating", "reloading")

    def has_started(self, unit: str) -> bool:
        """Return whether a unit runs and its start is complete."""
        return self._property(unit, "ActiveState") in ("active", "reloading")

    def is_down(self, unit: str) -> bool:
        """Return whether a unit does not run, or waits for a restart by systemd after it failed."""
        waits = self._property(unit, "SubState").startswith("auto-restart")
        return waits or not self.is_active(unit)

    def is_enabled(self, unit: str) -> bool:
        """Return whether systemd starts a unit at boot."""
        return self._property(unit, "UnitFileState") in ("enabled", "enabled-runtime", "static", "alias")

    def main_pid(self, unit: str) -> int:
        """Return the process id of a unit's daemon; 0 if the daemon does not run."""
        text = self._property(unit, "MainPID")
        return int(text) if text.isdecimal() else 0

    def active_units(self, pattern: str) -> list[str]:
        """Return the active services whose names match a pattern."""
        if not self.is_running:
            return []
        argv = ["systemctl", "list-units", "--plain", "--no-legend", "--no-pager", "--state=active", pattern]
        result = self._run(argv)
        units = [line.split()[0] for line in result.output.splitlines() if line.split()]
        return [unit for unit in units if unit.endswith(".service")] if result.status == 0 else []

    def call(self, *arguments: str) -> None:
        """Run systemctl with arguments, such as `restart slurmd`.

        Raises:
            UnavailableError: systemd does not run, or the request failed.
        """
        if not self.is_running:
            raise UnavailableError("systemctl " + " ".join(arguments), "systemd does not run here")
        result = self._run(["systemctl", *arguments])
        if result.status:
            lines = [line for line in result.output.strip().splitlines() if line]
            why = lines[0] if lines else f"exit status {result.status}"
            unit = arguments[-1]
            raise UnavailableError(f"systemctl {' '.join(arguments)}", why, f"journalctl -u {unit} -n 20")

    def _property(self, unit: str, name: str) -> str:
        if not self.is_running:
            return ""
        result = self._run(["systemctl", "show", "--property", name, "--value", unit])
        return result.output.strip() if result.status == 0 else ""
