"""Submission of a job with energy options from Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.jobs.energy_job import EnergyJob
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.slurm.sbatch import run_sbatch

_REFUSED: Final = {
    "array": "an EnergyJob is one job: submit a job per task",
    "parsable": "submit() sets it",
    "wait": "use EnergyJob.wait()",
    "test-only": "it submits nothing",
    "wrap": "pass the command as a list",
    "clusters": "senergyctld serves one cluster",
}
Option = str | int | float | bool | None


def submit(
    script: str | Path | Sequence[str],
    arguments: Sequence[str | Path] = (),
    *,
    policy: str | None = None,
    cap_watts: float | None = None,
    gpu_cap_watts: float | None = None,
    slowdown_percent: float | None = None,
    model: str | None = None,
    tag: str | None = None,
    tuning: str | None = None,
    options: Mapping[str, Option] | None = None,
    environment: Mapping[str, str] | None = None,
    controller: ControllerClient | None = None,
) -> EnergyJob:
    """Submit a batch script or a command, and return the job.

    Args:
        script: path of a batch script, or a command as a list such as `["python", "train.py"]`.
        arguments: arguments of the script or command.
        policy: energy policy (--energy-policy).
        cap_watts: power limit per node (--energy-cap).
        gpu_cap_watts: power limit per GPU (--energy-gpu-cap).
        slowdown_percent: slowdown limit (--energy-slowdown).
        model: value of --energy-model.
        tag: value of --energy-tag.
        tuning: value of --energy-tuning.
        options: other options of sbatch by long name, with `_` or `-`: `{"nodes": 2, "exclusive": True}`.
            True stands for an option without a value. None and False leave the option out.
        environment: environment variables for the job, in addition to those of this process.
        controller: client of the senergyctld that `record` and `trace` query; None means as configured.

    Raises:
        RefusedError: sbatch refused the job, for example because of an invalid flag.
        UsageError: an option is not supported here, or two arguments set the same flag.
        UnavailableError: sbatch is missing, or slurmctld does not answer.
    """
    flags: dict[str, Option] = {
        "energy-policy": policy,
        "energy-cap": cap_watts,
        "energy-gpu-cap": gpu_cap_watts,
        "energy-slowdown": None if slowdown_percent is None else f"{slowdown_percent:g}%",
        "energy-model": model,
        "energy-tag": tag,
        "energy-tuning": tuning,
    }
    given = {name.replace("_", "-"): value for name, value in (options or {}).items()}
    for name in given:
        if name in _REFUSED:
            raise UsageError(f"options: {name}", _REFUSED[name])
        if flags.get(name) is not None:
            raise UsageError(f"options: {name}", "given twice", "leave it out of options")
    words = [word for name, value in (flags | given).items() for word in _option(name, value)]
    command = ["sbatch", "--parsable", *words, *_program(script, [str(one) for one in arguments])]
    return EnergyJob(run_sbatch(command, environment or {}), controller)


def _option(name: str, value: Option) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    return [f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"]


def _program(script: str | Path | Sequence[str], arguments: list[str]) -> list[str]:
    if isinstance(script, str | Path):
        return [str(script), *arguments]
    if not script:
        raise UsageError("script: the command is empty")
    return [f"--wrap={shlex.join([*map(str, script), *arguments])}"]
