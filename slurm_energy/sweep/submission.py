"""Submission of the runs of a sweep with sbatch: command line, environment, and job id."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.batch_script import effective_options
from slurm_energy.slurm.sbatch import run_sbatch
from slurm_energy.slurm.sbatch_options import LONG
from slurm_energy.sweep.state import SweepState, variant_tag
from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.factors import LIMITS, option_of, variable_of

_UNSUPPORTED: Final = {
    "array": "each run is a job of its own: submit the sweep without --array",
    "energy-tag": "the sweep sets it: choose --name instead",
    "energy-alternatives": "the controller would choose the resources of each run",
    "wait": "the sweep waits itself",
    "parsable": "the sweep sets it",
    "test-only": "use --dry-run of the sweep",
    "wrap": "name a batch script",
    "clusters": "a controller serves one cluster",
}


_ASSIGNMENT = re.compile(r"\s*(export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=")
_EMPTY_SCRIPT: Final = b"#!/bin/sh\n"


@dataclass(frozen=True, slots=True)
class Submitter:
    """Submitter of the jobs of one sweep.

    Attributes:
        state: state of the sweep.
        script: path of the batch script.
        given: sbatch options from the script's #SBATCH lines and from the user, by long name.
    """

    state: SweepState
    script: str
    given: Mapping[str, str | None]

    def command(self, point: SweepPoint, job_name: str) -> list[str]:
        """Return the sbatch command of one run."""
        settings = [(option_of(name), value) for name, value in point.settings]
        options = {name: value for name, value in settings if name is not None and value is not None}
        if "energy-policy" not in self.given:
            options["energy-policy"] = point.policy
        options["energy-tag"] = self._tag(point)
        options["job-name"] = job_name
        variables = [variable for name, _ in point.settings if (variable := variable_of(name))]
        if variables and self.given.get("export"):
            options["export"] = ",".join([str(self.given["export"]), *variables])
        return [
            "sbatch",
            "--parsable",
            *self.state.options,
            *(f"--{name}={value}" for name, value in options.items()),
            self.script,
            *self.state.arguments,
        ]

    def environment(self, point: SweepPoint) -> dict[str, str]:
        """Return the environment variables that a sweep sets for the jobs of one point.

        A point is a combination of the settings that the sweep varies.
        """
        pairs = [(variable_of(name), value) for name, value in point.settings]
        return {name: value for name, value in pairs if name is not None and value is not None}

    def submit(self, point: SweepPoint, job_name: str) -> int:
        """Submit one run and return its job id.

        Raises:
            RefusedError: sbatch refused the job.
            UnavailableError: sbatch is missing, timed out, or cannot reach slurmctld.
        """
        return run_sbatch(self.command(point, job_name), self.environment(point))

    def _tag(self, point: SweepPoint) -> str:
        reference = self.state.points[0]
        changed = [
            (name, value)
            for name, value in point.settings
            if not (option_of(name) or "").startswith("energy-") and value != reference.value(name)
        ]
        return variant_tag(self.state.tag, changed)


def read_given_options(
    script: str,
    content: bytes,
    options: Sequence[str],
    points: Sequence[SweepPoint],
    replaced: Collection[str] = (),
) -> dict[str, str | None]:
    """Return the options that the script and the user set.

    Refuse options that conflict with a sweep.

    Args:
        script: path of the batch script.
        content: content of the batch script.
        options: sbatch options of the user.
        points: combinations of settings that the sweep measures.
        replaced: sbatch options of the script that the sweep replaces.

    Raises:
        UsageError: an option cannot be used in a sweep or is a factor of the sweep, the script assigns a
            variable that is a factor, or this release of slurm-energy does not know the flag of a factor.
    """
    given = effective_options(script, content, options)
    own = effective_options(script, _EMPTY_SCRIPT, options)
    if "export" not in own and "SBATCH_EXPORT" in os.environ:
        given["export"] = os.environ["SBATCH_EXPORT"]  # precedes the option in the script
    for name, reason in _UNSUPPORTED.items():
        if name in given:
            raise UsageError(f"--{name}", reason)
    for name, _ in points[0].settings:
        option = option_of(name)
        if option in given and not (option in replaced and option not in own):
            raise UsageError(f"--{option}", "the script or the sbatch options set a factor of the sweep")
        if option is not None and option.startswith("energy-") and option not in LONG:
            raise UsageError(f"--{name}", f"this release has no flag --{option}")
        if option == "job-name" or option in _UNSUPPORTED:
            raise UsageError(f"--{option}", _UNSUPPORTED.get(option, "the sweep sets it"))
    limits = [option for name in LIMITS if (option := option_of(name)) in given]
    if limits and "energy-policy" not in given:
        raise UsageError(
            f"--{limits[0]}", "the reference would have this limit", "give it as a factor instead"
        )
    has_variables = any(variable_of(name) for name, _ in points[0].settings)
    if has_variables and any(option_of(name) == "export" for name, _ in points[0].settings):
        raise UsageError(
            "factor sbatch.export", "would keep other factors from the job", "vary variables only"
        )
    if has_variables and (given.get("export") or "").upper() in ("NONE", "NIL"):
        raise UsageError(f"--export={given['export']}", "would keep the factors from the job", "leave it out")
    _refuse_assignments(script, content, {variable_of(name) for name, _ in points[0].settings} - {None})
    return given


def _refuse_assignments(script: str, content: bytes, variables: Collection[str | None]) -> None:
    """Refuse a script that assigns a value to an environment variable that the sweep varies.

    The assignment would replace the values of the sweep, so all its points would be equal. An assignment
    of the form `NAME="${NAME:-DEFAULT}"` is permitted.
    """
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        match = _ASSIGNMENT.match(line)
        takes_value = any(f"${{{name}:-" in line for name in variables)
        if match and match["name"] in variables and not takes_value:
            name = match["name"]
            raise UsageError(
                f"{shown(script)}: line {number} sets {name}, a factor of the sweep",
                todo=f'write {name}="${{{name}:-DEFAULT}}"',
            )


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Context manager that delays an interrupt by the user until the end of the `with` block.

    An interrupt between the start of sbatch and the storage of the job id would leave a job whose id is
    unknown. Only the main thread receives interrupts. In other threads the context manager has no effect.
    """
    received: list[int] = []
    try:
        previous = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        raise KeyboardInterrupt
