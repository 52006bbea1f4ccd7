"""SQL statements about one job, which maintain the sums of `usage_rollup`.

The statements are built once, because SQLAlchemy takes longer to build a statement than SQLite takes to
execute it. Most statements have the parameters `of_cluster` (name of the cluster) and `of_job` (Slurm's job
id). Some statements have only the parameter `of_job`. In these statements, `of_job` is the id of the run's
row in the database.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BindParameter, bindparam, delete, func, select

from slurm_energy.accounting.schema import tables
from slurm_energy.accounting.schema.usage_tables import usage_changed_jobs, usage_runs, usage_unknown_jobs
from slurm_energy.accounting.usage.groups import JOB

ENERGIES: Final = ("cpu", "dram", "gpu", "other")
_OF_CLUSTER: Final[BindParameter[Any]] = bindparam("of_cluster")
_OF_JOB: Final[BindParameter[Any]] = bindparam("of_job")
_rows = tables.periods.c
_KEYS: Final = (_rows.restart_count, _rows.start, _rows.end, _rows.uid, _rows.usage_group)

COUNTED: Final = (
    select(
        *_KEYS,
        func.sum(_rows.total_uj).label("total_uj"),
        *(func.sum(_rows[f"{name}_uj"]).label(f"{name}_uj") for name in ENERGIES),
        *(func.count(_rows[f"{name}_uj"]).label(f"{name}_rows") for name in ENERGIES),
    )
    .where(_rows.cluster == _OF_CLUSTER, _rows.job_id == _OF_JOB, _rows.kind == JOB)
    .where(_rows.usage_group.is_not(None))
    .group_by(*_KEYS)
    .order_by(*_KEYS)
)
"""The counted energy of a job by run, period and group."""
DELETE_CHANGED: Final = delete(usage_changed_jobs).where(
    usage_changed_jobs.c.cluster == _OF_CLUSTER, usage_changed_jobs.c.job_id == _OF_JOB
)
DELETE_KNOWN: Final = delete(usage_unknown_jobs).where(
    usage_unknown_jobs.c.cluster == _OF_CLUSTER, usage_unknown_jobs.c.job_id == _OF_JOB
)
COUNTED_RUN: Final = select(
    *usage_runs.c["usage_group", "start", "end", "cpus", "gpus", "suspended_s"]
).where(usage_runs.c.job == _OF_JOB)
TIMES_OF_JOB: Final = select(*tables.jobs.c["start", "end", "updated", "state", "elapsed_s"]).where(
    tables.jobs.c.id == _OF_JOB
)
