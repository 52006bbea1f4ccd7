"""Values that `senergy template render --best` fills into a batch template."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from slurm_energy.cli import best_settings, connection, predict_job
from slurm_energy.cli.output import note
from slurm_energy.cli.sweep_template_values import is_swept, saved_sweep, sweep_values
from slurm_energy.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from slurm_energy.templates import Template
    from slurm_energy.tuning.objective import Objective


def best_values(
    args: argparse.Namespace, objective: Objective, template: Template, text: str, given: dict[str, str]
) -> dict[str, str]:
    """Return values for the variables of a template: the best known settings, and the time limit if known.

    A saved sweep of the program is preferred, because it also measured threads, processes and batch size.

    Args:
        args: command line. Its attribute `gpu` is the GPU type as Slurm names it; None if not given.
        objective: quantity that the settings minimise (energy, EDP or ED2P), with the maximum slowdown.
        template: template to be rendered.
        text: script that the template yields without the best values.
        given: values of template variables that the user set by --set.

    Raises:
        UsageError: the template is no batch script.
        NotFoundError: it is not known how time and power of the job depend on the settings.
    """
    from slurm_energy.slurm.batch_script import read_script

    if not text.startswith("#!"):
        raise UsageError("--best", f"template {template.name} is no batch script")
    if (sweep := saved_sweep(args, template, given)) is not None:
        return sweep_values(sweep, objective, template)
    notes: list[str] = []
    script = read_script(f"{template.name}.sh", text.encode())
    args = argparse.Namespace(**{**vars(args), "user": None, "calibration": None})  # options of predict
    request = predict_job.prediction_request(args, script, notes)
    if args.gpu is not None:
        request = dataclasses.replace(request, gpu_kind=args.gpu)
    request = best_settings.without_caps(request)
    curve = best_settings.known_curve(args, request, notes)
    for line in notes:
        note(line)
    if curve is None:
        todo = "name the program with --set model=NAME and the GPUs with --gpu KIND"
        if is_swept(template):
            todo += ", or measure it with senergy sweep --preset"
        raise NotFoundError("--best", best_settings.UNKNOWN, todo)
    if is_swept(template):
        note(f"no saved sweep of this program: {_names_of_swept(template)} keep their defaults")
    untuned = predict_job.predict(args, request, [])
    best = best_settings.best_settings(
        curve, objective, connection.configuration(args).accepted_bounds, untuned
    )
    for line in best.lines():
        note(line)
    by_option = {f"--{variable.option}": variable.name for variable in template.variables if variable.option}
    return {by_option[flag]: value for flag, value in best.flags.items() if flag in by_option}


def _names_of_swept(template: Template) -> str:
    return ", ".join(variable.name for variable in template.variables if variable.sweep)
