"""The last live report of each node, and the response to `GET /v1/running`.

The reports are kept only in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Final

from slurm_energy.accounting.records.plausibility import PlausibilityCheck
from slurm_energy.config import Config
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import OFF, NodeHosts, Sender, check_sender
from slurm_energy.controller.http.recent_refusals import RecentRefusals
from slurm_energy.controller.records.deliveries import SMALL_BODY_BYTES, read_object
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.diagnosis.live_finding import LiveFinding, parse_live_findings
from slurm_energy.errors import EnergyError, ForbiddenError, UnavailableError, UsageError
from slurm_energy.grid.present_factors import PresentFactors
from slurm_energy.protocol.live_reports import FINDINGS, MAX_INTERVAL_S, LiveReport, readable_records
from slurm_energy.protocol.query_parameters import refuse_unknown, words
from slurm_energy.quantities import shown
from slurm_energy.records import EnergyRecord

MAX_REPORTS_PER_S: Final = 100.0
"""With more nodes the reports are less frequent. A report takes 1 to 2 ms of CPU time."""
MAX_NODES: Final = 100_000
MAX_BYTES: Final = 256 << 20
"""Bound on the size of all reports together."""
MIN_EXPIRY_S: Final = 120.0
_EXPIRY_INTERVALS: Final = 4.0
_JOBS_AGE_S: Final = 30.0
_PARAMETERS: Final = ("job", "node")
_RESPONSE_KEYS: Final = ("age_s", "state", "job")


@dataclass(frozen=True, slots=True)
class RunningRecord:
    """A running job or step in a report.

    Attributes:
        job_id, restart_count: identity of the job's run; `restart_count` is the number of requeues.
        uid: uid of the job's owner.
        text: record of the job or step as JSON text, without the closing brace.
        user: login name of the job's owner; empty if unknown.
        is_step: whether the record is about a step.
        start_s: start of the job or step, Unix seconds.
        findings: findings about the job on this node so far.
    """

    job_id: int
    restart_count: int
    uid: int
    text: str
    user: str = ""
    is_step: bool = False
    start_s: float = 0.0
    findings: tuple[LiveFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeState:
    """The last report of a node.

    Attributes:
        cluster, node: Slurm's names.
        time: Unix time of the report according to the node's clock.
        received_s: monotonic time at which the report arrived.
        interval_s: seconds between two reports of a node when this report arrived.
        watts: power of the node by component; None means unknown.
        records: running jobs and steps on the node.
        size_bytes: size of the report and of `facts`.
        clock_offset_s: the node's clock minus the clock of this host. The value is too low by the
            transmission time of the report.
        counts, facts: as in `LiveReport`. Facts from an earlier report apply until the node sends new facts.
    """

    cluster: str
    node: str
    time: float
    received_s: float
    interval_s: float
    watts: Mapping[str, float | None]
    records: tuple[RunningRecord, ...]
    size_bytes: int
    clock_offset_s: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    facts: str | None = None


class LiveReports:
    """Receiver of live reports. It keeps the last report of each node to answer requests.

    Args:
        config: returns the current configuration.
        hosts: addresses of nodes; None means that any agent may report for any node.
        running: the running jobs in Slurm, for the accounts of jobs; None means that accounts are unknown.
        clock: returns monotonic seconds.
        factors: returns the present carbon intensity and price, which responses to nodes contain. None means
            that responses state that both are unknown.
        policies_digest: returns the digest of the policy file. Nodes keep copies of this file. None means
            that responses do not contain the digest.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        hosts: NodeHosts | None = None,
        running: RunningJobCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        factors: Callable[[], Awaitable[PresentFactors]] | None = None,
        policies_digest: Callable[[], str] | None = None,
    ) -> None:
        self._config, self._hosts, self._running, self._clock = config, hosts, running, clock
        self._factors = factors or _unknown_factors
        self._policies_digest = policies_digest
        self._nodes: dict[tuple[str, str], NodeState] = {}
        self._facts: dict[str, str] = {}  # one object for equal facts of many nodes
        self._refusals = RecentRefusals(clock)
        self._bytes = 0
        self._expired_s = clock()

    @property
    def interval_s(self) -> float:
        """Seconds between two reports of a node. All nodes together send at most `MAX_REPORTS_PER_S`."""
        return min(len(self._nodes) / MAX_REPORTS_PER_S, MAX_INTERVAL_S)

    def nodes(self) -> list[NodeState]:
        """Return the last report of each node that still reports, sorted by cluster and node."""
        now_s = self._clock()
        return [state for _, state in sorted(self._nodes.items()) if not _is_expired(state, now_s)]

    async def receive(self, body: bytes, sender: Sender) -> dict[str, Any]:
        """Keep a report and return the response.

        Raises:
            ForbiddenError: the sender does not run on the node.
            NotFoundError: Slurm does not know the node.
            UnavailableError: the memory for reports is full.
            UsageError: the report is malformed or implausible.
        """
        controller = self._config().controller
        check = PlausibilityCheck.with_site_values(controller.max_watts)
        arrived = time.time()
        if len(body) > SMALL_BODY_BYTES:
            report, records = await asyncio.to_thread(_read, body, check)
        else:
            report, records = _read(body, check)
        try:
            await check_sender(self._hosts, report.node, sender, controller.record_hosts)
        except ForbiddenError as error:
            self._refusals.add(report.node, error.why)
            raise
        self._refusals.forget(report.node)
        state = self._put(report, records, len(body), report.time - arrived)
        return {
            "interval_s": self.interval_s,
            "grid": (await self._factors()).to_json(),
            "wants_facts": state.facts is None,
            **({"policies": self._policies_digest()} if self._policies_digest else {}),
        }

    def refusals(self) -> dict[str, str]:
        """Return the reason for which the live reports of a node were refused recently, by node.

        A live report states the present power of the node and the energy of its running jobs so far.
        """
        return self._refusals.recent()

    async def running(self, query: Mapping[str, str], rights: Rights) -> Iterator[str]:
        """Return the response to `GET /v1/running` as JSON text in pieces, without the closing brace.

        Everyone may see the power of nodes. A job is visible to the users who may see its energy records.

        Raises:
            UsageError: a parameter is unknown or malformed.
        """
        refuse_unknown(query, _PARAMETERS)
        jobs, nodes = _job_ids(words(query, "job")), frozenset(words(query, "node"))
        is_visible = await self.visibility(rights)
        states = [state for state in self.nodes() if not nodes or state.node in nodes]
        head = {**rights.described(), "nodes": [self._node_object(state) for state in states]}

        def pieces() -> Iterator[str]:
            text, separator = f'{json.dumps(head)[:-1]},"records":[', "\n"
            for state in states:
                age = f',"age_s":{self.age_s(state):.3f},"state":"RUNNING","job":null}}'
                for record in state.records:
                    if (jobs and record.job_id not in jobs) or not is_visible(state, record):
                        continue
                    text += f"{separator}{record.text}{age}"
                    separator = ",\n"
                yield text
                text = ""
            yield f"{text}\n]"

        return pieces()

    async def visibility(self, rights: Rights) -> Callable[[NodeState, RunningRecord], bool]:
        """Return a function that says whether a running job of a node may be shown to a user."""
        in_accounts = await self._jobs_in(rights.accounts)

        def is_visible(state: NodeState, record: RunningRecord) -> bool:
            if rights.everything or record.uid == rights.uid:
                return True
            in_slurm = state.cluster == self._config().cluster.name  # other clusters have the same job ids
            return in_slurm and (record.job_id, record.restart_count) in in_accounts

        return is_visible

    async def _jobs_in(self, accounts: frozenset[str]) -> frozenset[tuple[int, int]]:
        """Return the running jobs (id, restart count) of the given Slurm accounts."""
        if not accounts or self._running is None:
            return frozenset()
        try:
            jobs = await self._running.read(_JOBS_AGE_S)
        except EnergyError:  # the coordinator sees only the own jobs meanwhile
            return frozenset()
        return frozenset((job.job_id, job.restart_count) for job in jobs.values() if job.account in accounts)

    def _node_object(self, state: NodeState) -> dict[str, Any]:
        return {
            "cluster": state.cluster,
            "node": state.node,
            "time": state.time,
            "age_s": round(self.age_s(state), 3),
            "watts": dict(state.watts),
        }

    def age_s(self, state: NodeState) -> float:
        """Return how many seconds ago a live report of a node arrived."""
        return max(0.0, self._clock() - state.received_s)

    def _put(
        self, report: LiveReport, records: tuple[RunningRecord, ...], size_bytes: int, clock_offset_s: float
    ) -> NodeState:
        self._drop_expired()
        # A checked node belongs to one cluster. Its agent cannot fill the memory with names of clusters.
        is_checked = self._hosts is not None and self._config().controller.record_hosts != OFF
        key = "" if is_checked else report.cluster, report.node
        earlier = self._nodes.get(key)
        facts = report.facts or (earlier.facts if earlier is not None else None)
        size_bytes += len(facts or "") if report.facts is None else 0
        more_bytes = size_bytes - (earlier.size_bytes if earlier is not None else 0)
        if (earlier is None and len(self._nodes) >= MAX_NODES) or self._bytes + more_bytes > MAX_BYTES:
            raise UnavailableError("live reports", "no room for more")
        interval_s = max(self.interval_s, self._config().agent.live_report_s)
        self._bytes += more_bytes
        state = self._nodes[key] = NodeState(
            *(report.cluster, report.node, report.time, self._clock(), interval_s),
            *(report.watts, records, size_bytes, clock_offset_s, report.counts),
            self._facts.setdefault(facts, facts) if facts is not None else None,
        )
        return state

    def _drop_expired(self) -> None:
        now_s = self._clock()
        if now_s - self._expired_s < MIN_EXPIRY_S / 2:
            return
        self._expired_s = now_s
        for key in [key for key, state in self._nodes.items() if _is_expired(state, now_s)]:
            self._bytes -= self._nodes.pop(key).size_bytes
        in_use = {state.facts for state in self._nodes.values()}
        self._facts = {text: text for text in self._facts if text in in_use}


async def _unknown_factors() -> PresentFactors:
    return PresentFactors()


def _is_expired(state: NodeState, now_s: float) -> bool:
    return now_s - state.received_s > max(MIN_EXPIRY_S, _EXPIRY_INTERVALS * state.interval_s)


def _read(body: bytes, check: PlausibilityCheck) -> tuple[LiveReport, tuple[RunningRecord, ...]]:
    """Parse and check a live report.

    Return the report, and each of its records together with the JSON text that is sent to clients.
    """
    data = read_object(body)
    report = LiveReport.from_json(data)
    now = time.time()
    try:
        for record in report.records:
            check.check(record, now)
    except UsageError:
        raise
    except EnergyError as error:  # a clock that is ahead
        raise UsageError(str(error)) from None
    return report, tuple(starmap(_running_record, readable_records(data["records"])))


def _running_record(record: EnergyRecord, item: Mapping[str, Any]) -> RunningRecord:
    """Return a checked record with its JSON text. `item` is the JSON object of this record in the report."""
    content = {key: value for key, value in item.items() if key not in _RESPONSE_KEYS}
    text = json.dumps(content, separators=(",", ":"))[:-1]
    findings: tuple[LiveFinding, ...] = ()
    with contextlib.suppress(UsageError):  # of a newer agent; its energy stays visible
        findings = parse_live_findings(dict(record.extra).get(FINDINGS, []))
    return RunningRecord(
        *(record.job_id, record.restart_count, record.uid, text),
        user=record.user or "",
        is_step=bool(record.step),
        start_s=record.start,
        findings=findings,
    )


def _job_ids(names: tuple[str, ...]) -> frozenset[int]:
    for name in names:
        if not (name.isascii() and name.isdecimal() and len(name) <= 18):
            raise UsageError(f"job: '{shown(name)}' is not a job id")
    return frozenset(map(int, names))
