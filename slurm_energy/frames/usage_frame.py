"""Energy in a time range as a data frame, with the figures of `senergy report`.

The energy is summed by account, user, energy policy and other dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.frames.controller_frames import Names, Time, client, seconds
from slurm_energy.frames.typed_frame import ColumnType, FrameColumn, typed_frame
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.usage_requests import DIMENSIONS, USAGE_PATH, UsageRequest
from slurm_energy.reports.utilization.grammar import Interval
from slurm_energy.reports.utilization.intervals import interval_edges
from slurm_energy.reports.utilization.usage import COMPONENTS, UsageDocument, UsageRow

_FIRST: Final = (
    FrameColumn("cluster", ColumnType.CHOICE, doc="Slurm's ClusterName"),
    FrameColumn("start", ColumnType.TIME, "UTC", "start of the interval"),
    FrameColumn("end", ColumnType.TIME, "UTC", "end of the interval"),
    FrameColumn("kind", ColumnType.CHOICE, doc="job, idle or unattributed"),
)
_AMOUNTS: Final = (
    FrameColumn("energy_joules", ColumnType.NUMBER, "J", "energy"),
    *(FrameColumn(f"{name}_joules", ColumnType.NUMBER, "J", f"energy of {name}") for name in COMPONENTS),
    FrameColumn("cpu_seconds", ColumnType.NUMBER, "s", "allocated CPU time"),
    FrameColumn("gpu_seconds", ColumnType.NUMBER, "s", "allocated GPU time"),
    FrameColumn("jobs", ColumnType.COUNT, doc="jobs that ran"),
    FrameColumn("co2e_grams", ColumnType.NUMBER, "g", "emissions, with the PUE if one is configured"),
    FrameColumn("cost", ColumnType.NUMBER, "", "cost in the currency of `frame.attrs`"),
)


def report(
    by: Names = "account",
    *,
    start: Time = None,
    end: Time = None,
    interval: str = "all",
    clusters: Names = None,
    controller: ControllerClient | None = None,
) -> Any:
    """Return the energy used in a time range, summed by interval and by the dimensions in `by`.

    Energy counts in the interval in which it was used. Operators also get rows of the kinds `idle` and
    `unattributed`. All rows then add up to the measured energy.

    Args:
        by: dimensions: one or more of account, user, qos, partition, policy, tag, gpu_kind and cpus.
        start: start of the time range, in a form that `jobs` accepts; None means yesterday 00:00.
        end: end of the time range, in a form that `jobs` accepts. None means now if `start` is given,
            otherwise today 00:00.
        interval: `all`, `hour`, `day`, `week` or `month`. The frame has one row per interval and combination
            of dimension values.
        clusters: names of clusters; None means only the cluster of the controller.
        controller: client of the senergyctld to query; None means the configured controller.

    Returns:
        Data frame with cluster, start, end, kind, the columns in `by`, and the amounts.
        `frame.attrs["currency"]` is the currency of `cost`; `frame.attrs["notes"]` contains remarks.

    Raises:
        UsageError: an argument is malformed, or the time range does not end after its start.
        UnavailableError: the controller does not answer, or pandas is missing.
    """
    groups = [by] if isinstance(by, str) else list(by or ())
    for name in groups:
        if name not in DIMENSIONS:
            raise UsageError(f"by: '{name}' is unknown", todo=f"one of {', '.join(DIMENSIONS)}")
    if interval not in list(Interval):
        raise UsageError(f"interval: '{interval}' is unknown", todo=f"one of {', '.join(Interval)}")
    edges = interval_edges(*_window(start, end), Interval(interval))
    names = (clusters,) if isinstance(clusters, str) else tuple(clusters or ())
    request = UsageRequest(edges, tuple(groups), names, count_jobs=True)
    document = UsageDocument.from_json((controller or client()).get(USAGE_PATH, request.parameters()))
    columns = (*_FIRST, *_group_columns(groups), *_AMOUNTS)
    frame = typed_frame(columns, (_values(row, document) for row in document.rows))
    frame.attrs |= {"currency": document.currency, "notes": list(document.notes)}
    return frame


def _window(start: Time, end: Time) -> tuple[float, float]:
    midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    first = seconds(start) if start is not None else (midnight - timedelta(days=1)).timestamp()
    if end is not None:
        last = seconds(end)
    else:
        last = midnight.timestamp() if start is None else datetime.now().timestamp()
    if not 0 <= first < last:
        raise UsageError(
            "start: the time range does not end after its start", todo="give an earlier start or a later end"
        )
    return first, last


def _group_columns(groups: Iterable[str]) -> list[FrameColumn]:
    kinds = {"cpus": ColumnType.COUNT}
    return [FrameColumn(name, kinds.get(name, ColumnType.CHOICE), doc=name) for name in groups]


def _values(row: UsageRow, document: UsageDocument) -> Mapping[str, Any]:
    start, end = document.intervals[row.interval]
    amounts = row.amounts
    joules = {f"{name}_joules": uj / 1e6 for name, uj in amounts.component_uj.items()}
    figures = {
        name: getattr(amounts, name) for name in ("cpu_seconds", "gpu_seconds", "jobs", "co2e_grams", "cost")
    }
    return (
        {"cluster": row.cluster, "start": start, "end": end, "kind": row.kind, "cpus": row.cpus}
        | dict(row.names)
        | {"energy_joules": amounts.energy_joules}
        | joules
        | figures
    )
