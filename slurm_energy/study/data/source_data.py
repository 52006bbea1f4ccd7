"""Reading of the jobs and energy that a step of a study needs for a period.

The data come from the sources of the study. If an interrupted run of the step has stored the data already,
the stored data are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.study.data.energy_file import energy_csv, read_energy
from slurm_energy.study.data.jobs_file import LoadedJobs, read_jobs
from slurm_energy.study.data.jobs_table import csv_text
from slurm_energy.study.data.kpis import EnergySeries
from slurm_energy.study.data.period import ENERGY_NAME, JOBS_NAME
from slurm_energy.study.step_run import StepRun


@dataclass(frozen=True, slots=True)
class StudySources:
    """Sources from which a step of an energy study reads the jobs and the energy of the nodes.

    Attributes:
        read: function that returns all jobs of the cluster and the energy of its nodes (None means that the
            energy is unknown).
        files: files from which `read` takes the data, to be listed in the manifest; empty if the data comes
            from the running site.
        options: options that select the data, to be listed in the manifest.
    """

    read: Callable[[], tuple[LoadedJobs, EnergySeries | None]]
    files: Mapping[str, Path]
    options: Mapping[str, Any]


def source_data(run: StepRun, sources: StudySources) -> tuple[LoadedJobs, EnergySeries | None]:
    """Return the jobs and the energy that a step of an energy study needs.

    If an interrupted run of the step has already stored the data, they are not read again.

    Args:
        run: the running step.
        sources: sources of the data, which are read only if no interrupted run has stored the data.
    """
    folder = run.partial_folder()
    stored = run.partial("data")
    if stored is not None:
        loaded = LoadedJobs(read_jobs(folder / JOBS_NAME).jobs, [str(note) for note in stored["notes"]])
        energy = read_energy(folder / ENERGY_NAME) if stored["energy"] else None
        return loaded, energy
    loaded, energy = sources.read()
    (folder / JOBS_NAME).write_text(csv_text(loaded.jobs), encoding="utf-8")
    if energy is not None:
        (folder / ENERGY_NAME).write_text(energy_csv(energy), encoding="utf-8")
    run.save_partial("data", {"notes": loaded.notes, "energy": energy is not None})
    return loaded, energy
