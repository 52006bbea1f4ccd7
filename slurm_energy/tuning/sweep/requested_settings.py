"""Options of sbatch and environment variables by which a job requests the settings of one sweep point."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.factors import option_of, variable_of


@dataclass(frozen=True, slots=True)
class RequestedSettings:
    """The sbatch options and environment variables with which one point of a sweep is run.

    A point is one combination of the values that the sweep varies.

    Attributes:
        options: values by sbatch option, without dashes.
        environment: values by environment variable.
    """

    options: dict[str, str]
    environment: dict[str, str]

    def lines(self) -> list[str]:
        """Return the lines for a batch script: the #SBATCH lines, then the exports."""
        return [
            *(f"#SBATCH --{name}={shlex.quote(value)}" for name, value in self.options.items()),
            *(f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON."""
        return {"sbatch": self.options, "environment": self.environment, "lines": self.lines()}


def requested_settings(point: SweepPoint) -> RequestedSettings:
    """Return the settings that a batch script must request to run at one point of a sweep.

    Settings that stay unchanged are left out. The policy `monitor` is also left out, because it is the
    policy of jobs that request none.
    """
    given = [(name, value) for name, value in point.settings if value is not None]
    options = {option: value for name, value in given if (option := option_of(name))}
    if point.policy != "monitor":
        options["energy-policy"] = point.policy
    environment = {variable: value for name, value in given if (variable := variable_of(name))}
    return RequestedSettings(options, environment)
