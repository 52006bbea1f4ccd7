"""Parts of a workload file (`workload.part_jobs`), one for each seed of a campaign."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slurm_energy.simulator.workloads.workload import REQUEST_COLUMNS, SHAPE_COLUMNS, Workload

_JOB_COLUMNS = (
    *("job_id", "user", "time_limit_s", "slack_s", "checkpointable", "compute_share"),
    *REQUEST_COLUMNS,
)


def part_of_workload(work: Workload, jobs: int, seed: int) -> Workload:
    """Return part number `seed` of a workload file, with `jobs` jobs per part.

    Parts are numbered from 0. After the number of the last part, the numbers start again at the first part.
    Times are shifted so that the part starts at 0. If `jobs` is 0 or not below the number of jobs, the whole
    workload is returned.
    """
    if not jobs or jobs >= work.count:
        return work
    start = (seed % (work.count // jobs)) * jobs
    rows, shapes = slice(start, start + jobs), slice(int(work.first[start]), int(work.first[start + jobs]))
    begin_s = work.submit_s[start]
    cut: dict[str, Any] = {name: getattr(work, name)[rows] for name in _JOB_COLUMNS}
    cut |= {name: getattr(work, name)[rows] - begin_s for name in ("submit_s", "deadline_s")}
    cut |= {name: getattr(work, name)[shapes] for name in SHAPE_COLUMNS}
    cut["first"] = work.first[start : start + jobs + 1] - work.first[start]
    return replace(work, names=work.names[rows], **cut)


def part_notes(count: int, jobs: int, seed: int) -> list[str]:
    """Return remarks on repeated parts of a workload file and on jobs in no part.

    A remark is returned if the seed repeats an earlier part. For the last part, a remark states how many jobs
    of the file follow and are in no part.

    Args:
        count: number of jobs in the file.
        jobs: number of jobs per part; 0 means that the file is not divided.
        seed: seed of the simulation.
    """
    if not jobs:
        return []
    parts = max(1, count // jobs)
    omitted = count - parts * jobs
    if seed >= parts:
        return [f"workload.part_jobs: seeds from {parts} on repeat jobs of earlier seeds (jobs: {count})"]
    if seed == parts - 1 and omitted > 0:
        return [f"workload.part_jobs: last jobs of the file that are in no part: {omitted} of {count}"]
    return []
