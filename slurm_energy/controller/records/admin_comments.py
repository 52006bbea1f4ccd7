"""Periodic task that writes the energy of ended jobs as JSON into their AdminComment in Slurm's accounting.

Comments of other tools are not changed. A comment is written only if the job has no comment, or if its
present comment consists of the energy flags that the job_submit module has written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from slurm_energy.accounting.history.ended_jobs import EndedJob, Position, ended_jobs
from slurm_energy.accounting.usage.job_parts import parts_of_records
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import EnergyError
from slurm_energy.grid.factor import EnergyPart
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.admin_comment import AdminComment, read_admin_comments, write_admin_comment
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.queue.comment_flags import is_only_flags, parse_comment_flags

KEY: Final = "slurm-energy"
_EARLIER_S: Final = 3600.0
"""At its start, senergyctld also looks at jobs that ended while it was stopped, this long before."""
_MAX_RATE_PER_S: Final = 5.0

log = logging.getLogger(__name__)


class AdminCommentWriter:
    """Writer of the AdminComments with the energy of jobs.

    Args:
        enabled: returns whether the configuration requests the comments.
        store: the database.
        run: executes Slurm's commands.
        factors: returns the factors of emissions and cost between two Unix times.
        failures: log of failures; a repeated failure is logged once.
    """

    def __init__(
        self,
        enabled: Callable[[], bool],
        store: Store,
        run: Runner,
        factors: Callable[[float, float], Any],
        failures: RepeatedFailureLog,
    ) -> None:
        self._enabled, self._store, self._run = enabled, store, run
        self._factors, self._failures = factors, failures
        self._after: Position = (time.time() - _EARLIER_S, 0)

    async def loop(self, interval_s: Callable[[], float]) -> None:
        """Write the AdminComment of ended jobs periodically until cancelled.

        `interval_s` returns the current interval.
        """
        while True:
            more = False
            if self._enabled():
                try:
                    more = await self.write()
                    self._failures.clear("AdminComment")
                except EnergyError as error:
                    self._failures.report("AdminComment", str(error))
            await asyncio.sleep(0.0 if more else interval_s())

    async def write(self) -> bool:
        """Write the energy of ended jobs as comments (AdminComment) into Slurm's accounting.

        The jobs are those that ended since the last call. Return whether more jobs are left.

        Raises:
            UnavailableError: the database or Slurm's accounting does not answer; the next call repeats the
                work.
        """
        jobs, last, more = await self._store.read(ended_jobs, self._after)
        if not jobs:
            self._after = last
            return more
        comments = await asyncio.to_thread(read_admin_comments, {job.job_id for job in jobs}, self._run)
        texts = {(comment.job_id, comment.submit): comment for comment in comments}
        for job in jobs:
            comment = texts.get((job.job_id, float(int(job.submit))))
            if comment is not None and is_free(comment):
                factors = await self._factors(job.start, job.end)
                parts = await self._parts(job, factors)
                flags = parse_comment_flags(comment.text)
                text = await asyncio.to_thread(comment_text, job, parts, factors, flags)
                await asyncio.to_thread(write_admin_comment, job.job_id, job.cluster, text, self._run)
                await asyncio.sleep(1 / _MAX_RATE_PER_S)
        self._after = last
        return more

    async def _parts(self, job: EndedJob, factors: GridFactors) -> Sequence[EnergyPart]:
        """Return the energy of a job by time.

        The whole job is one part if its energy is unknown, if its division by time is unknown, or if the
        division makes no difference because no factor changes while the job runs.
        """
        if job.energy_joules is not None and not factors.are_constant(job.start, job.end):
            parts = await self._store.read(parts_of_records, [job.record_id], None)
            if job.record_id in parts:
                return parts[job.record_id]
        return [(job.start, job.end, job.energy_joules)]


def is_free(comment: AdminComment) -> bool:
    """Return whether senergyctld may replace the AdminComment of a job.

    It may replace an empty comment, and a comment that contains only the energy flags of the job.
    """
    return not comment.text or is_only_flags(comment.text)


def comment_text(
    job: EndedJob, parts: Sequence[EnergyPart], factors: GridFactors, flags: dict[str, str]
) -> str:
    """Return the AdminComment text of a job: a JSON object with one key, in ASCII.

    Unknown values are null. sacctmgr replaces each quotation mark by a backtick. The texts in the object
    must therefore contain no backticks.

    Args:
        job: the ended job.
        parts: energy of the job by time.
        factors: factors of emissions and cost.
        flags: energy flags of the job.
    """
    footprint = factors.footprint(parts)
    elapsed_s = job.end - job.start
    watts = None if job.energy_joules is None or elapsed_s <= 0 else job.energy_joules / elapsed_s
    figures = {
        "v": 1,
        "energy_joules": _rounded(job.energy_joules),
        "elapsed_s": _rounded(elapsed_s),
        "mean_watts": _rounded(watts),
        "co2e_grams": _rounded(footprint.grams),
        "cost": _rounded(footprint.cost_amount),
        "currency": footprint.currency if footprint.cost is not None else None,
        "policy": job.policy.replace("`", "'"),
        "nodes": job.nodes,
        "flags": flags,
    }
    return json.dumps({KEY: figures}, separators=(",", ":"), ensure_ascii=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
