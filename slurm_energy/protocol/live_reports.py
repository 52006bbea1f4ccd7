"""Live reports from senergyd to senergyctld: the power of a node and the energy so far of its running jobs.

A running job or step is described by an energy record whose `end` is the time of the report. The record of a
job has the additional key `watts`: the job's present power by component.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.protocol.node_states import check_counts, facts_text
from slurm_energy.quantities import is_number, shown
from slurm_energy.records import EnergyRecord, NewerSchemaError, is_name

LIVE_PATH: Final = "/v1/live"
RUNNING_PATH: Final = "/v1/running"
FINDINGS_PATH: Final = "/v1/findings"
MAX_LIVE_RECORDS: Final = 1024
"""Maximum number of records in a report. Hooks wait while senergyd builds it, so it is short."""
MAX_LIVE_BYTES: Final = 4 << 20
MAX_INTERVAL_S: Final = 3600.0
"""Maximum interval of reports that senergyctld may request."""
WATTS: Final = "watts"
"""Key of the record of a running job that contains the job's present power."""
FINDINGS: Final = "findings"
"""Key of the record of a running job that contains its findings so far, see `diagnosis/live_finding.py`."""
_MAX_COMPONENTS: Final = 1024
_MAX_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The present state of one node.

    Attributes:
        cluster, node: Slurm's names.
        time: time of the report in Unix seconds.
        watts: power of the node by component, None if unknown. If the node has a node meter, the component
            `node` is the power of the whole node.
        records: records of the running jobs and of their running steps.
        counts: numbers that describe the state of the agent, for example of spooled records, see
            `node_states`.
        facts: facts about the node as canonical JSON, see `node_states`; None if they are the same as in an
            earlier report.
    """

    cluster: str
    node: str
    time: float
    watts: Mapping[str, float | None] = field(default_factory=dict)
    records: tuple[EnergyRecord, ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)
    facts: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        facts = {} if self.facts is None else {"facts": json.loads(self.facts)}
        return {
            "cluster": self.cluster,
            "node": self.node,
            "time": self.time,
            "watts": dict(self.watts),
            "records": [record.to_json() for record in self.records],
            "counts": dict(self.counts),
            **facts,
        }

    @classmethod
    def from_json(cls, data: Any) -> LiveReport:
        """Build a report from a dict that `to_json` returned.

        Unknown keys of the report are ignored, and records of a newer schema are left out. The power of the
        node and its other jobs therefore stay visible while agents are newer than senergyctld.

        Raises:
            UsageError: a key is missing or has a bad value, or a record is about another node.
        """
        if not isinstance(data, dict):
            raise UsageError("live report: not a JSON object")
        cluster, node, time = (data.get(key) for key in ("cluster", "node", "time"))
        if not (_is_short_name(cluster) and _is_short_name(node)):
            raise UsageError("live report: bad cluster or node")
        if not is_number(time) or not 0 <= float(str(time)) < math.inf:
            raise UsageError(f"live report: bad time {shown(str(time))}")
        items = data.get("records")
        if not isinstance(items, list) or len(items) > MAX_LIVE_RECORDS:
            raise UsageError(f"live report: 'records' is not a list of at most {MAX_LIVE_RECORDS} records")
        records = tuple(record for record, _ in readable_records(items))
        for record in records:
            if (record.cluster, record.node) != (cluster, node):
                raise UsageError(f"live report: job {record.job_id} is on another node")
            check_watts(dict(record.extra).get(WATTS, {}))
        return cls(
            *(str(cluster), str(node), float(str(time)), check_watts(data.get("watts")), records),
            check_counts(data.get("counts", {})),
            facts_text(data["facts"]) if data.get("facts") is not None else None,
        )


def readable_records(items: Sequence[Any]) -> Iterator[tuple[EnergyRecord, Any]]:
    """Yield the records of a report, each with the JSON value from which it was read.

    Records of a newer schema are left out.

    Raises:
        UsageError: a value is not a record.
    """
    for item in items:
        with contextlib.suppress(NewerSchemaError):
            yield EnergyRecord.from_json(item), item


def check_watts(data: Any) -> dict[str, float | None]:
    """Check powers by component and return them in watts; None stands for unknown power.

    Raises:
        UsageError: the data are not an object with powers.
    """
    if not isinstance(data, dict) or len(data) > _MAX_COMPONENTS:
        raise UsageError("live report: 'watts' is not an object")
    for name, watts in data.items():
        good = watts is None or (is_number(watts) and watts >= 0)
        if not (good and _is_short_name(name)):
            raise UsageError(f"live report: bad power of {shown(name)}")
    return data


def _is_short_name(value: Any) -> bool:
    return value != "" and is_name(value, _MAX_NAME)
