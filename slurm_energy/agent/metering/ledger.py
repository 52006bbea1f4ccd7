"""The energy ledger of a node: every measured microjoule of every component is charged exactly once.

The ledger receives the counter deltas of each sample and the jobs that were on the node. The ledger charges
each job its share by the rule of docs/attribution.md. This module reads no hardware. For every component, the
energy of the jobs, the idle energy and the unattributed energy add up to the measured energy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.agent.metering.attribution import (
    BY_CPU_TIME,
    OTHER,
    DynamicEnergy,
    EnergySplit,
    NodeMeasurement,
    gpu_index,
    split_energy,
)
from slurm_energy.agent.metering.component_account import MAX_WAIT_S, SLACK_S, ComponentAccount
from slurm_energy.agent.metering.component_rules import assumed_jobs, has_use, is_quiet
from slurm_energy.agent.metering.idle_power import IdlePower
from slurm_energy.agent.metering.job_meter import Charge
from slurm_energy.agent.metering.node_remainder import MIN_SOLE_SPAN_S, NodeRemainder
from slurm_energy.agent.metering.occupancy import (
    GONE,
    NOT_MONITORED,
    CpuTimeDelta,
    MonitoredDelta,
    OccupancyInterval,
    Occupant,
    occupancy_of,
)
from slurm_energy.agent.metering.sampler import SampleInterval
from slurm_energy.devices.discovery import NodeDevices

_MIN_SHARED_SPAN_S = 10.0
"""Node power meters average and lag behind. Over a shorter time the lag would distort the energy."""
_MAX_READ_DURATION_S = 0.05
"""If reading a sample took longer, the node meter may be ahead of the components by that time."""


class Ledger:
    """Ledger of one node, which charges every measured microjoule of every component exactly once.

    The ledger has one energy account per component. It charges the energy to jobs, to idle energy or to
    unattributed energy.

    Args:
        devices: the node's hardware.
        idle: idle power by component. The ledger passes intervals without jobs to this object, so that it
            learns the idle power.
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
        # Components that the node meter does not include are added to its reading, not subtracted from it.
        self._node_parts = {
            name for name in keys if name.partition("[")[0] not in devices.selection.added_parts and node
        }
        self._remainder = NodeRemainder()
        self._dynamic = DynamicEnergy()

    def charge(
        self,
        interval: SampleInterval,
        occupants: Sequence[Occupant],
        cpu_time: CpuTimeDelta,
        monitored: MonitoredDelta = NOT_MONITORED,
        *,
        at_boundary: bool = False,
    ) -> dict[str, Charge]:
        """Charge the energy of one sample interval.

        Args:
            interval: counter deltas of the interval.
            occupants: the jobs that were on the node for the whole interval.
            cpu_time: CPU time used in the interval.
            monitored: use of monitored quantities by job in the interval, as the processor counted it.
            at_boundary: whether a job or a Slurm step starts or ends at the end of the interval. If so, all
                energy that can be charged is charged now.

        Returns:
            The charge of each occupant by job name.
        """
        self.idle.set_read_duration(interval.read_duration_s)
        used = cpu_time, monitored
        occupancy = occupancy_of(interval.start, interval.end, self._cpus, self._gpus, occupants, *used)
        charges = _ChargeBuilder(interval, occupants, self._other_start(interval))
        ready: dict[int, tuple[OccupancyInterval, list[str]]] = {}
        for name, account in self._accounts.items():
            if name == OTHER:
                continue
            unattributed_uj = account.unattributed_uj
            complete = account.add_readings(interval)
            if name in self._node_parts:  # time of an excluded counter, which `other` was charged for already
                self._remainder.add_late(account.unattributed_uj - unattributed_uj)
            if complete and has_use(name, cpu_time, monitored):
                open_time = account.close(occupancy)
                ready.setdefault(id(open_time), (open_time, []))[1].append(name)
            else:
                account.extend(occupancy)
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
        """Remove a job that has ended from the node's ledger of energy.

        Some energy of the time of the job may not be divided among jobs yet. The job's part of this energy
        becomes unattributed energy.

        Args:
            job: the job.
            now: end of the job in seconds since boot.

        Returns:
            For each component, the seconds of the job whose energy is not charged to the job.
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

    @property
    def accounts(self) -> Mapping[str, ComponentAccount]:
        """Energy accounts by component."""
        return self._accounts

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the microjoules charged so far, by component and by kind of charge.

        The kinds are `jobs`, `idle` and `unattributed`; `measured` is the sum of these.
        """
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
        """Convert the energy of a job whose stored state (session) is lost to unattributed energy.

        Args:
            energy_uj: the energy that was charged (assigned) to the job, in microjoules by component.
        """
        for name, energy in energy_uj.items():
            if name in self._accounts:
                self._accounts[name].jobs_uj -= energy
                self._accounts[name].unattributed_uj += energy

    def dump(self) -> dict[str, Any]:
        """Return the state of the ledger as a dict that JSON can hold."""
        return {
            "accounts": {name: account.dump() for name, account in self._accounts.items()},
            **self._remainder.dump(),
            "dynamic": {"jobs": dict(self._dynamic.jobs), "rest": self._dynamic.rest},
            "idle": self.idle.dump(),
        }

    def load(self, data: Mapping[str, Any], *, same_boot: bool) -> None:
        """Restore the state of the ledger from the output of `dump`.

        If the state was saved before the last boot (`same_boot` is False), energy that was read but not
        divided yet becomes unattributed, because the counters have started again from 0.
        """
        for name, account in self._accounts.items():
            if name in data["accounts"]:
                account.load(data["accounts"][name])
        self._remainder.load(data)
        if not same_boot:
            self._unattribute_open_time()
        else:
            self._dynamic = DynamicEnergy(data["dynamic"]["jobs"], data["dynamic"]["rest"])
        self.idle.learned_watts.update(data["idle"])

    def _unattribute_open_time(self) -> None:
        for name, account in self._accounts.items():
            if name != OTHER:
                self._remainder.add_parts(account.uncharged_uj if name in self._node_parts else 0)
                account.unattribute_open_time(account.uncharged_uj)
        if (other := self._accounts.get(OTHER)) is not None:
            other.unattribute_open_time(self._remainder.take_before_reboot(other.uncharged_uj))

    def _charge_split(
        self, open_time: OccupancyInterval, energy_uj: Mapping[str, int], charges: _ChargeBuilder
    ) -> None:
        """Divide energy among the jobs on the node, and add the shares to the energy accounts.

        `open_time` is the interval in which the energy was used. `charges` receives the share of each job.
        """
        if open_time.sole is not None:
            self._charge_sole(open_time, open_time.sole, energy_uj, charges)
            return
        result = self._split(open_time, energy_uj)
        for name, energy in energy_uj.items():
            account = self._accounts[name]
            gone = result.jobs.get(GONE, {}).get(name, 0)
            account.idle_uj += result.idle[name]
            account.unattributed_uj += result.unattributed[name] + gone
            account.jobs_uj += energy - result.idle[name] - result.unattributed[name] - gone
            account.measured_uj += energy
            self._count_part(name, energy, open_time, charges)
            charges.add_split(name, open_time, account, result)
            if not account.uncertain_spans:
                self.idle.observe(
                    open_time.length_s, {name: energy}, [name] if is_quiet(name, open_time) else []
                )
            account.settle()
        if OTHER in self._accounts and OTHER not in energy_uj:
            self._dynamic = result.dynamic

    def _charge_sole(
        self, open_time: OccupancyInterval, sole: str, energy_uj: Mapping[str, int], charges: _ChargeBuilder
    ) -> None:
        """Charge all energy of a sample interval to the only job on the node.

        The job `sole` had the whole node during the whole interval `open_time`. Most nodes never have more
        than one job at a time, so this is the common case. The charge of the job is added to `charges`.
        """
        self.idle.observe(open_time.length_s, energy_uj, ())
        for name, energy in energy_uj.items():
            account = self._accounts[name]
            account.jobs_uj += energy
            account.measured_uj += energy
            self._count_part(name, energy, open_time, charges)
            charges.uncertain_spans += account.uncertain_spans
            charges.add(sole, name, energy, open_time, account)
            account.settle()
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
            monitored=open_time.monitored_totals(),
        )
        return split_energy(interval, open_time.resource_times())

    def _other_start(self, interval: SampleInterval) -> float:
        """Return the time, in seconds since boot, up to which the component `other` is charged."""
        other = self._accounts.get(OTHER)
        return interval.start if other is None or other.open_interval is None else other.open_interval.start

    def _count_part(
        self, name: str, energy_uj: int, open_time: OccupancyInterval, charges: _ChargeBuilder
    ) -> None:
        """Count the energy of a component that the node meter includes.

        If the component was so late that `other` was charged without it, the energy is late.
        """
        if name not in self._node_parts:
            return
        if open_time.start < charges.other_start - SLACK_S:
            self._remainder.add_late(energy_uj)
        else:
            charges.node_parts_uj += energy_uj

    def _charge_other(
        self,
        interval: SampleInterval,
        occupancy: OccupancyInterval,
        charges: _ChargeBuilder,
        at_boundary: bool,
    ) -> None:
        """Charge the energy of the component `other` to jobs.

        This energy is the reading of the node's meter minus the energy of all components with counters of
        their own. The method is called after each sample, with the interval since the last sample. It charges
        the energy once the readings of the meter and of these components cover the same time, and after
        MAX_WAIT_S at the latest. Until then, it only adds the interval to the time of `other` that is not
        charged yet.
        """
        account = self._accounts.get(OTHER)
        if account is None:
            return
        was_open = account.open_interval is not None
        complete = account.add_readings(interval)
        # The node meter starts to report: its reading does not include earlier energy of the components.
        if was_open and account.open_interval is None:
            self._remainder.restart()
            self._dynamic = DynamicEnergy()
        self._remainder.add_parts(charges.node_parts_uj)
        late = [self._accounts[name].open_interval for name in self._node_parts]
        waits = any(open_ is not None and interval.end - open_.start < MAX_WAIT_S for open_ in late)
        start = account.open_interval.start if account.open_interval is not None else occupancy.start
        if self._remainder.has_late or (not waits and any(open_ is not None for open_ in late)):
            account.mark_uncertain(start, interval.end)
        for uncertain_start, uncertain_end in charges.uncertain_spans:
            account.mark_uncertain(uncertain_start, uncertain_end)
        alone = occupancy.sole is not None and interval.read_duration_s <= _MAX_READ_DURATION_S
        min_s = (MIN_SOLE_SPAN_S if alone else _MIN_SHARED_SPAN_S) - SLACK_S
        young = not at_boundary and interval.end - start < min_s
        if not complete or waits or young:
            account.extend(occupancy)
            return
        open_time = account.close(occupancy)
        rest_uj = self._remainder.take(account.uncharged_uj, open_time.length_s)
        self._charge_split(open_time, {OTHER: rest_uj}, charges)
        self._dynamic = DynamicEnergy()


class _ChargeBuilder:
    """Collector of the energy charges of all jobs on the node for one sample interval.

    Charges are added component by component.

    Args:
        interval: the sample interval.
        occupants: the jobs that were on the node.
        other_start: time, in seconds since boot, up to which the component `other` was charged before.
    """

    def __init__(self, interval: SampleInterval, occupants: Sequence[Occupant], other_start: float) -> None:
        self._interval = interval
        self.other_start = other_start
        self.node_parts_uj = 0
        self._unsized = {t.job for t in occupants if t.cpus is None and not t.whole}
        self._energy: dict[str, dict[str, int]] = {occupant.job: {} for occupant in occupants}
        self._since: dict[str, dict[str, float]] = {occupant.job: {} for occupant in occupants}
        self._uncertain: dict[str, dict[str, float]] = {occupant.job: {} for occupant in occupants}
        self._assumed: dict[str, set[str]] = {occupant.job: set() for occupant in occupants}
        self._methods: dict[str, dict[str, str]] = {occupant.job: {} for occupant in occupants}
        self.uncertain_spans: list[tuple[float, float]] = []
        self.waiting: frozenset[str] = frozenset()

    def add_split(
        self, name: str, open_time: OccupancyInterval, account: ComponentAccount, result: EnergySplit
    ) -> None:
        """Add the energies of the jobs for one component to the charges.

        Args:
            name: name of the component.
            open_time: interval whose energy is charged.
            account: account of the component.
            result: division of the energy among the jobs.
        """
        self.uncertain_spans += account.uncertain_spans
        assumed, methods = assumed_jobs(name, open_time), result.methods.get(name, {})
        for job in self._energy:
            energies_uj = result.jobs.get(job)
            if energies_uj is None or (not energies_uj[name] and self._is_unknown(name, job, open_time)):
                continue
            self.add(job, name, energies_uj[name], open_time, account)
            if job in assumed:
                self._assumed[job].add(name)
            if method := methods.get(job):
                self._methods[job][name] = method

    def add(
        self, job: str, name: str, energy_uj: int, open_time: OccupancyInterval, account: ComponentAccount
    ) -> None:
        """Add the energy of one component to a job, unless the job has left the node.

        Args:
            job: name of the job.
            name: name of the component.
            energy_uj: the job's share of the component's energy, in microjoules.
            open_time: the charged time, with the resources that were allocated to each job during that time.
            account: energy account of the component. It states in which parts of the charged time the energy
                is uncertain.
        """
        if (energy := self._energy.get(job)) is None:
            return
        energy[name] = energy_uj
        since = max(open_time.start, open_time.since[job])
        if since < self._interval.start:
            self._since[job][name] = since
        if account.uncertain_spans and (component_uncertain_s := account.job_uncertain_s(job, since)) > 0:
            self._uncertain[job][name] = component_uncertain_s

    def _is_unknown(self, name: str, job: str, open_time: OccupancyInterval) -> bool:
        """Return whether the job's share of the component `name` is unknown.

        Some components are divided among jobs by CPU use. The share of such a component is unknown if two
        values of the job are unknown: its allocated CPUs and its CPU time. The job got 0 in the division. Its
        energy of this component is recorded as null, not as 0.
        """
        by_cpu = name in BY_CPU_TIME or name == OTHER
        return by_cpu and job in self._unsized and open_time.cpu_ns.get(job) is None

    def charges(self) -> dict[str, Charge]:
        """Return the energy charged to each job on the node, with details, by job name."""
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
                self._methods[job],
            )
            for job, energy in self._energy.items()
        }
