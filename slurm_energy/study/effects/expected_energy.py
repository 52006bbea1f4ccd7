"""Energy that the work of a day would have needed without the change that a study examines.

This expected energy is learned from the baseline, the time before the change. The amount and the kind of
work differ between days. This causes most of the variation of energy. The ratio of actual to expected energy
varies less, so that fewer days suffice to find an effect. The method is the baseline adjustment of IPMVP
(option C, 2022), with job classes as independent variables.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.study.data.days import StudyDays, spread
from slurm_energy.study.data.jobs_table import Bools, Floats, JobsTable, Texts

_MIN_JOBS: Final = 5
"""Jobs of the baseline from which a kind of job gets its own energy per work."""
_MIN_DAYS: Final = 7


def expected_kwh(
    jobs: JobsTable, days: StudyDays, begin_s: float, measured_kwh: Floats | None = None
) -> Floats | None:
    """Return the energy that each period would need without the change that a deployment makes.

    The function returns None if the baseline (the measured time before the deployment) is too small.

    The result is the sum of the expected energies of the jobs and of the idle nodes. The jobs are divided
    into kinds. A kind is a partition and a class of jobs. The job name replaces the class of a job that has
    none. Jobs of rare kinds are grouped by their partition alone. The expected energy of a job is its work
    times the mean energy per work of its kind. The expected energy of nodes without a job is a constant
    minus a term for each partition. The term is proportional to the work in the partition. The constant and
    the terms are fitted to the baseline.

    Args:
        jobs: jobs of the baseline and of the deployment.
        days: periods of the result, usually days.
        begin_s: end of the baseline and start of the deployment in Unix seconds.
        measured_kwh: energy of all nodes by period; None means that only the energy of jobs counts.
    """
    ran = jobs.where((jobs.run_s > 0) & ~np.isnan(jobs.work_node_hours))
    is_known = (ran.end_s <= begin_s) & ~np.isnan(ran.energy_joules)
    if is_known.sum() < _MIN_JOBS:
        return None
    rate = _energy_per_work(ran, is_known)
    job_kwh = spread(ran.start_s, ran.end_s, ran.work_node_hours * rate, days.edges_s) / JOULES_PER_KWH
    if measured_kwh is None:
        return job_kwh
    columns = [days.hours]
    for partition in np.unique(ran.partition):
        own = ran.where(ran.partition == partition)
        columns.append(spread(own.start_s, own.end_s, own.work_node_hours, days.edges_s))
    is_baseline = (days.edges_s[1:] <= begin_s) & days.used & ~np.isnan(measured_kwh)
    if is_baseline.sum() < max(_MIN_DAYS, 2 * len(columns)):
        return None
    design = np.column_stack(columns)
    rest = measured_kwh - job_kwh
    factors = np.linalg.lstsq(design[is_baseline], rest[is_baseline], rcond=None)[0]
    expected: Floats = job_kwh + design @ factors
    return expected


def _energy_per_work(jobs: JobsTable, is_known: Bools) -> Floats:
    """Return the expected energy per unit of work of each job, in joules per node-hour.

    It is the mean over the jobs of the same kind whose energy is known.
    """
    kinds = np.where(jobs.job_class != "", jobs.job_class, jobs.name)
    rate = _means_by(np.full(jobs.count, "x"), jobs, is_known, 1)
    rate = np.where(np.isnan(own := _means_by(jobs.partition, jobs, is_known, _MIN_JOBS)), rate, own)
    joined = np.char.add(np.char.add(jobs.partition, "\n"), kinds)
    return np.where(np.isnan(own := _means_by(joined, jobs, is_known, _MIN_JOBS)), rate, own)


def _means_by(keys: Texts, jobs: JobsTable, is_known: Bools, min_jobs: int) -> Floats:
    """Return, for each job, the mean energy per node-hour of work among similar jobs.

    Jobs with the same key are similar. Only jobs with known energy are used. The result is NaN if fewer
    than `min_jobs` similar jobs have known energy.

    Args:
        keys: key of each job.
        jobs: all jobs.
        is_known: whether the energy of each job is known.
        min_jobs: minimum number of similar jobs with known energy.
    """
    names, number = np.unique(keys, return_inverse=True)
    own = number[is_known]
    joules = np.bincount(own, jobs.energy_joules[is_known], len(names))
    work = np.bincount(own, jobs.work_node_hours[is_known], len(names))
    enough = (np.bincount(own, minlength=len(names)) >= min_jobs) & (work > 0)
    rates: Floats = np.where(enough, joules / np.where(work > 0, work, 1.0), np.nan)[number]
    return rates
