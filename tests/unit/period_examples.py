"""Examples of node periods (energy of a node in a time interval, by job) for tests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from slurm_energy.node_period import NodePeriod, PeriodEnergy, PeriodJob

HOUR_S = 3600
JOB: Mapping[str, int] = {"cpu": 3_000_000}


def period(
    start: int = 1_799_996_400,
    end: int | None = None,
    node: str = "n1",
    jobs: Mapping[tuple[int, int], Mapping[str, int]] | None = None,
    idle: Mapping[str, int] | None = None,
    unattributed: Mapping[str, int] | None = None,
    **more: Any,
) -> NodePeriod:
    """Return an example period of a node whose energies add up.

    Args:
        start, end, node: same meaning as in `NodePeriod`; one hour by default.
        jobs: microjoules by component of each job, by job id and restart count.
        idle, unattributed: microjoules by component; the keys of `idle` are the components of the node.
        more: other attributes, and `uid`, the owner of the jobs.
    """
    jobs = {(1, 0): JOB} if jobs is None else jobs
    idle = {"cpu": 1_000_000} if idle is None else idle
    uid = more.pop("uid", 1000)
    components = {}
    for name, idle_uj in idle.items():
        jobs_uj = sum(energy.get(name, 0) for energy in jobs.values())
        rest_uj = (unattributed or {}).get(name, 0)
        components[name] = PeriodEnergy(jobs_uj + idle_uj + rest_uj, jobs_uj, idle_uj, rest_uj)
    return NodePeriod(
        cluster=more.pop("cluster", "c1"),
        node=node,
        start=start,
        end=start + HOUR_S if end is None else end,
        components=components,
        jobs=tuple(PeriodJob(*key, uid, dict(energy)) for key, energy in jobs.items()),
        period_id=more.pop("period_id", uuid.uuid4().hex),
        **more,
    )


@st.composite
def period_parts(draw: st.DrawFn) -> NodePeriod:
    """Hypothesis strategy for random node periods.

    A node period is the energy of a node in a time interval, divided among jobs, idle and unattributed
    energy.
    """
    names = draw(st.sets(st.sampled_from(["cpu", "dram", "gpu[0]", "gpu[7]", "other"]), min_size=1))
    energy = st.integers(0, 2**50)
    keys = st.tuples(st.integers(1, 2**40), st.integers(0, 3))
    jobs = draw(st.dictionaries(keys, st.dictionaries(st.sampled_from(sorted(names)), energy), max_size=5))
    each = st.fixed_dictionaries(dict.fromkeys(sorted(names), energy))
    start = draw(st.integers(0, 2**33))
    return period(
        start,
        start + draw(st.integers(1, 10**6)),
        jobs=jobs,
        idle=draw(each),
        unattributed=draw(each),
        late_seconds=draw(st.floats(0, 1e6)),
        uncertain_seconds=draw(st.floats(0, 1e6)),
    )
