"""Check whether a deferral plan leaves enough free resources for suspended jobs to resume."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.deferral.slot_fit import SlotFit, reserve_urgent
from slurm_energy.deferral.tables import DeferralPlan, DeferralQueue
from slurm_energy.deferral.window_costs import candidate_starts
from slurm_energy.scheduling.queue import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Resumptions:
    """Planned resumptions of running jobs that are to be suspended; columns have shape (n,).

    The jobs are in the order in which they get resources when they resume.

    Attributes:
        end_s: predicted end of the run if the job is not suspended.
        resume_s: planned time of the resumption.
        time_s: predicted run time from the resumption on, including the restart.
        power_watts, units, hardware: predicted mean power, number of units (GPUs or CPUs), and kind of
            hardware, as in `DeferralQueue`.
    """

    end_s: Floats
    resume_s: Floats
    time_s: Floats
    power_watts: Floats
    units: Floats
    hardware: Ints


def has_room(queue: DeferralQueue, plan: DeferralPlan, jobs: Resumptions, slot_s: float) -> Bools:
    """Return which suspended jobs will find free resources when they resume, as a mask, shape (n,).

    The function assumes that the jobs are suspended now and release their resources. The resources are
    then taken in this order: by pending jobs that are not deferrable, by deferrable jobs at their planned
    starts, and by the resumed jobs. Resumed jobs must leave room for jobs that have not arrived yet.

    Args:
        queue: the pending jobs, and the resources that running jobs leave free.
        plan: planned starts of the pending jobs.
        jobs: the jobs to suspend.
        slot_s: length of a slot.
    """
    last_s = float(np.max(np.append(jobs.resume_s + jobs.time_s, jobs.end_s), initial=queue.now_s))
    starts_s = candidate_starts(queue.now_s, last_s, slot_s)
    fit = SlotFit(starts_s, queue.capacity)
    room = np.ones(len(jobs.end_s), np.bool_)
    if not fit.limited:
        return room
    used_s = np.maximum(jobs.end_s - queue.now_s, 0.0)
    for job in range(len(room)):
        first, after = _span(starts_s, queue.now_s, float(used_s[job]))
        units, watts = float(jobs.units[job]), float(jobs.power_watts[job])
        fit.take(first, after, int(jobs.hardware[job]), -units, -watts)
    reserve_urgent(queue, starts_s, fit)
    for job in np.flatnonzero(queue.deferrable).tolist():
        first, after = _span(starts_s, float(plan.start_s[job]), float(queue.time_s[job]))
        units, watts = float(queue.units[job]), float(queue.power_watts[job])
        fit.take(first, after, int(queue.hardware[job]), units, watts)
    for job in range(len(room)):
        first, after = _span(starts_s, float(jobs.resume_s[job]), float(jobs.time_s[job]))
        kind, units, watts = int(jobs.hardware[job]), float(jobs.units[job]), float(jobs.power_watts[job])
        room[job] = fit.fits(first, after, kind, units, watts)
        if room[job]:
            fit.take(first, after, kind, units, watts)
    return room


def _span(starts_s: Floats, start_s: float, time_s: float) -> tuple[int, int]:
    """Return the time slots that a job occupies: its first slot, and the slot after its last slot.

    The job starts at `start_s`.
    """
    first = max(0, int(np.searchsorted(starts_s, start_s, side="right")) - 1)
    after = int(np.searchsorted(starts_s, start_s + time_s, side="left"))
    return first, max(after, first + 1)
