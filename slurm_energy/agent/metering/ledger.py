"""The node's books: what every component cpu_time, and who pays. Each microjoule is booked once.

Takes intervals with the jobs that were there and gives each job its part by the rule of docs/attribution.md.
Reads no hardware. For every component: jobs + idle + unattributed = measured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.agent.metering.attribution import (
    BY_CPU_TIME,
    OTHER,
    DynamicEnergy,
    EnergySplit,
    NodeMeasurement,
    gpu_index,
    rest_of_node,
    split_energy,
)
from slurm_energy.agent.metering.component_account import MAX_WAIT_S, SLACK_S, ComponentAccount
from slurm_energy.agent.metering.idle_power import QUIET_BUSY_SHARE, IdlePower
from slurm_energy.agent.metering.job_meter import Charge
from slurm_energy.agent.metering.occupancy import (
    GONE,
    CpuTimeDelta,
    OccupancyInterval,
    Occupant,
    occupancy_of,
)
from slurm_energy.agent.metering.sampler import SampleInterval
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

_MIN_SHARED_SPAN_S = 10.0
"""Meters of nodes lag and average; over less, what their lag moves about would be split, not energy."""
_MIN_SOLE_SPAN_S = 1.0
"""They are updated ten times a second or less often, so that samples in between show parts only."""
_MAX_READ_DURATION_S = 0.05
"""Where readings took longer, the node's meter may be that much ahead of its parts: the next ones tell."""
_MAX_DEBT_S = 30.0
"""Meters that disagree for longer than this contradict each other: the node's shows less than its parts."""


class Ledger:
    """The books of one node.

    Args:
        devices: the node's hardware.
        idle: what its components draw when nothing runs.
    """

    def __init__(self, devices: NodeDevices, idle: IdlePower) -> None:
        self.idle = idle
        self._cpus = devices.hardware.cpu_count
        keys: dict[str, list[str]] = {}
        for counter in devices.counters:
            keys.setdefault(counter.component, []).append(counter.key)
        self._accounts = {name: ComponentAccount(tuple(of)) for name, of in keys.items()}
        self._gpus = [gpu_index(name) for name in self._accounts if name.startswith("gpu[")]
        node = tuple(counter.key for counter in devices.node_counters)
        if node:
            self._accounts[OTHER] = ComponentAccount(node)
        # What the node's meter lacks is added to it, so that it is no part of the difference either.
        self._node_parts = {
            name for name in keys if name.partition("[")[0] not in devices.selection.added_parts and node
        }
        self._node_parts_uj = 0
        self._debt_uj = 0
        self._dynamic = DynamicEnergy()
        self._failures = RepeatedFailureLog(log)

    def charge(
        self,
        interval: SampleInterval,
        occupants: Sequence[Occupant],
        cpu_time: CpuTimeDelta,
        *,
        at_boundary: bool = False,
    ) -> dict[str, Charge]:
        """Book an interval.

        Args:
            interval: what the counters told.
            occupants: the jobs that were there all the time.
            cpu_time: CPU time in it.
            at_boundary: a job's or step's time begins or ends here: what can be booked is.

        Returns:
            By job what it pays; every occupant has an entry.
        """
        self.idle.set_read_duration(interval.read_duration_s)
        occupancy = occupancy_of(interval.start, interval.end, self._cpus, self._gpus, occupants, cpu_time)
        ready: dict[int, tuple[OccupancyInterval, list[str]]] = {}
        for name, account in self._accounts.items():
            if name == OTHER:
                continue
            if account.add_readings(interval) and (cpu_time.complete or name not in BY_CPU_TIME):
                open_time = account.close(occupancy)
                ready.setdefault(id(open_time), (open_time, []))[1].append(name)
            else:
                account.extend(occupancy)
        charges = _ChargeBuilder(interval, occupants)
        for open_time, names in ready.values():
            self._charge_split(
                open_time, {name: self._accounts[name].uncharged_uj for name in names}, charges
            )
        self._charge_other(interval, occupancy, charges, at_boundary)
        charges.waiting = frozenset(
            name for name, account in self._accounts.items() if account.open_interval is not None
        )
        return charges.charges()

    def remove_job(self, job: str, now: float) -> dict[str, float]:
        """Let a job go; what is still to be told of its time is nobody's.

        Returns:
            Seconds by component of which it does not get its part any more.
        """
        lost: dict[str, float] = {}
        for name, account in self._accounts.items():
            if account.open_interval is not None and job in account.open_interval.since:
                lost[name] = max(
                    0.0, now - max(account.open_interval.start, account.open_interval.since[job])
                )
                account.open_interval = account.open_interval.without(job)
        if job in self._dynamic.jobs:
            jobs = {name: uj for name, uj in self._dynamic.jobs.items() if name != job}
            self._dynamic = DynamicEnergy(jobs, self._dynamic.rest + self._dynamic.jobs[job])
        return lost

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the books in microjoules by component: `jobs`, `idle` and `unattributed` are `measured`."""
        return {
            name: {
                "measured": account.measured_uj,
                "jobs": account.jobs_uj,
                "idle": account.idle_uj,
                "unattributed": account.unattributed_uj,
            }
            for name, account in self._accounts.items()
        }

    def move_to_unattributed(self, energy_uj: Mapping[str, int]) -> None:
        """Take back what a job was given that nobody remembers."""
        for name, energy in energy_uj.items():
            if name in self._accounts:
                self._accounts[name].jobs_uj -= energy
                self._accounts[name].unattributed_uj += energy

    def dump(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {
            "accounts": {name: account.dump() for name, account in self._accounts.items()},
            "node_parts_uj": self._node_parts_uj,
            "debt_uj": self._debt_uj,
            "dynamic": {"jobs": dict(self._dynamic.jobs), "rest": self._dynamic.rest},
            "idle": self.idle.dump(),
        }

    def load(self, data: Mapping[str, Any], *, same_boot: bool) -> None:
        """Go on from the output of `dump`; after another boot only with what is booked."""
        for name, account in self._accounts.items():
            if name in data["accounts"]:
                account.load(data["accounts"][name])
            if not same_boot:
                (
                    account.uncharged_uj,
                    account.late_since,
                    account.uncertain_spans,
                    account.open_interval,
                    account.lost_since,
                ) = 0, {}, [], None, {}
                account.excluded_until = {}
        if same_boot:
            self._node_parts_uj, self._debt_uj = data["node_parts_uj"], data["debt_uj"]
            self._dynamic = DynamicEnergy(data["dynamic"]["jobs"], data["dynamic"]["rest"])
        self.idle.learned_watts.update(data["idle"])

    def _charge_split(
        self, open_time: OccupancyInterval, energy_uj: Mapping[str, int], charges: _ChargeBuilder
    ) -> None:
        """Split energy that was told for a span, and note it in the lines."""
        if open_time.sole is not None:
            self._charge_sole(open_time, open_time.sole, energy_uj, charges)
            return
        result = self._split(open_time, energy_uj)
        for name, energy in energy_uj.items():
            account = self._accounts[name]
            gone = result.jobs.get(GONE, {}).get(name, 0)
            account.idle_uj += result.idle[name]
            account.unattributed_uj += result.unattributed[name] + gone
            account.jobs_uj += sum(parts[name] for parts in result.jobs.values()) - gone
            account.measured_uj += energy
            if name in self._node_parts:
                self._node_parts_uj += energy
            charges.add_split(name, open_time, account, result)
            if not account.uncertain_spans:
                self.idle.observe(
                    open_time.length_s, {name: energy}, [name] if _is_quiet(name, open_time) else []
                )
            account.uncharged_uj, account.uncertain_spans, account.lost_since = 0, [], {}
        if OTHER in self._accounts and OTHER not in energy_uj:
            self._dynamic = result.dynamic

    def _charge_sole(
        self, open_time: OccupancyInterval, sole: str, energy_uj: Mapping[str, int], charges: _ChargeBuilder
    ) -> None:
        """Book all of a span for the job that had the node for itself; on most nodes that is every sample."""
        self.idle.observe(open_time.length_s, energy_uj, ())
        for name, energy in energy_uj.items():
            account = self._accounts[name]
            account.jobs_uj += energy
            account.measured_uj += energy
            if name in self._node_parts:
                self._node_parts_uj += energy
            charges.charged_uj[name] = energy
            charges.uncertain_spans += account.uncertain_spans
            charges.add(sole, name, energy, open_time, account)
            account.uncharged_uj, account.uncertain_spans, account.lost_since = 0, [], {}
        if OTHER in self._accounts and OTHER not in energy_uj:
            mine = self._dynamic.jobs.get(sole, 0) + sum(energy_uj.values())
            self._dynamic = DynamicEnergy({**self._dynamic.jobs, sole: mine}, self._dynamic.rest)

    def _split(self, open_time: OccupancyInterval, energy_uj: Mapping[str, int]) -> EnergySplit:
        interval = NodeMeasurement(
            capacity_ns=open_time.capacity_ns,
            busy_ns=open_time.busy_ns,
            energy_uj=energy_uj,
            static_uj=self.idle.static_uj(open_time.length_s, energy_uj),
            dynamic=self._dynamic,
            gpus=tuple(name for name in self._accounts if name.startswith("gpu[")),
        )
        return split_energy(interval, open_time.resource_times())

    def _charge_other(
        self,
        interval: SampleInterval,
        occupancy: OccupancyInterval,
        charges: _ChargeBuilder,
        at_boundary: bool,
    ) -> None:
        """Book what the node's meter shows beyond the parts, once both are told for the same time."""
        account = self._accounts.get(OTHER)
        if account is None:
            return
        was_open = account.open_interval is not None
        told = account.add_readings(interval)
        if (
            was_open and account.open_interval is None
        ):  # its meter begins to tell: what parts cpu_time before is not in it
            self._node_parts_uj = sum(charges.charged_uj.get(name, 0) for name in self._node_parts)
            self._debt_uj, self._dynamic = 0, DynamicEnergy()
        late = [self._accounts[name].open_interval for name in self._node_parts]
        waits = any(open_ is not None and interval.end - open_.start < MAX_WAIT_S for open_ in late)
        for start, end in charges.uncertain_spans:
            account.mark_uncertain(start, end)
        start = account.open_interval.start if account.open_interval is not None else occupancy.start
        alone = occupancy.sole is not None and interval.read_duration_s <= _MAX_READ_DURATION_S
        min_s = (_MIN_SOLE_SPAN_S if alone else _MIN_SHARED_SPAN_S) - SLACK_S
        young = not at_boundary and interval.end - start < min_s
        if not told or waits or young:
            account.extend(occupancy)
            return
        open_time = account.close(occupancy)
        rest_uj, debt_uj = rest_of_node(account.uncharged_uj, self._node_parts_uj, self._debt_uj)
        self._debt_uj = self._bounded(debt_uj, account.uncharged_uj, open_time.length_s)
        self._node_parts_uj = 0
        self._charge_split(open_time, {OTHER: rest_uj}, charges)
        self._dynamic = DynamicEnergy()

    def _bounded(self, debt_uj: int, node_uj: int, length_s: float) -> int:
        if length_s < _MIN_SOLE_SPAN_S - SLACK_S:  # says nothing of their powers
            return debt_uj
        max_uj = round(node_uj * _MAX_DEBT_S / length_s)
        if debt_uj <= max_uj:
            self._failures.clear("meter of the node", "shows as much as its parts again")
            return debt_uj
        self._failures.report("meter of the node", "shows less than the node's parts together")
        return max_uj


class _ChargeBuilder:
    """Collects what an interval brings to each occupant."""

    def __init__(self, interval: SampleInterval, occupants: Sequence[Occupant]) -> None:
        self._interval = interval
        self._allocations = occupants
        self._unsized = {t.job for t in occupants if t.cpus is None and not t.whole}
        self._energy: dict[str, dict[str, int]] = {occupant.job: {} for occupant in occupants}
        self._since: dict[str, dict[str, float]] = {occupant.job: {} for occupant in occupants}
        self._uncertain: dict[str, dict[str, float]] = {occupant.job: {} for occupant in occupants}
        self._assumed: dict[str, set[str]] = {occupant.job: set() for occupant in occupants}
        self.charged_uj: dict[str, int] = {}
        self.uncertain_spans: list[tuple[float, float]] = []
        self.waiting: frozenset[str] = frozenset()

    def add_split(
        self, name: str, open_time: OccupancyInterval, account: ComponentAccount, result: EnergySplit
    ) -> None:
        """Note the split of one component's energy."""
        self.charged_uj[name] = account.uncharged_uj
        self.uncertain_spans += account.uncertain_spans
        for job in self._energy:
            if job not in result.jobs or (
                not result.jobs[job][name] and self._is_unknown(name, job, open_time)
            ):
                continue
            self.add(job, name, result.jobs[job][name], open_time, account)
            if _is_assumed(name, job, open_time):
                self._assumed[job].add(name)

    def add(
        self, job: str, name: str, energy_uj: int, open_time: OccupancyInterval, account: ComponentAccount
    ) -> None:
        """Note what a job, if it is still there, gets of one component's energy."""
        if (energy := self._energy.get(job)) is None:
            return
        energy[name] = energy_uj
        since = max(open_time.start, open_time.since[job])
        if since < self._interval.start:
            self._since[job][name] = since
        if account.uncertain_spans and (component_uncertain_s := account.uncertain_s(job, since)) > 0:
            self._uncertain[job][name] = component_uncertain_s

    def _is_unknown(self, name: str, job: str, open_time: OccupancyInterval) -> bool:
        """Return whether nothing tells what a job holds or does: it was given nothing, which is no figure."""
        by_cpu = name in BY_CPU_TIME or name == OTHER
        return by_cpu and job in self._unsized and open_time.cpu_ns.get(job) is None

    def charges(self) -> dict[str, Charge]:
        """Return the result."""
        return {
            job: Charge(
                self._interval.start,
                self._interval.end,
                energy,
                self._since[job],
                self.waiting,
                self._uncertain[job],
                frozenset(self._assumed[job]),
                self._interval.throttled_s,
                self._interval.read_duration_s / 2,
            )
            for job, energy in self._energy.items()
        }


def _is_assumed(name: str, job: str, open_time: OccupancyInterval) -> bool:
    """Return whether it is an assumption how much of a component is the job's: others are there too."""
    if not name.startswith("gpu["):
        return True
    index = gpu_index(name)
    share_ns = open_time.gpu_ns.get(job, {}).get(index, 0)
    there_s = open_time.length_s - max(0.0, open_time.since[job] - open_time.start)
    return share_ns > 0 and (len(open_time.holders(index)) > 1 or share_ns < 0.999e9 * there_s)


def _is_quiet(name: str, open_time: OccupancyInterval) -> bool:
    """Return whether nobody cpu_time a component in a span."""
    if name.startswith("gpu["):
        return not open_time.holders(gpu_index(name))
    held = any(any(held.values()) for held in open_time.gpu_ns.values())
    if open_time.busy_ns is None or (name == OTHER and held):
        return False
    return open_time.busy_ns <= QUIET_BUSY_SHARE * open_time.capacity_ns
