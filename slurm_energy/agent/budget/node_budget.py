"""Enforcement of power budgets on one node, on which the agent limits the power of devices.

A ceiling is the upper bound of a device's power limit. The controller's decisions set the ceilings. A
decision is valid for the time of its lease. When the lease ends, the agent lowers the ceilings to the
safe limits that came with the decision. The hardware keeps the ceilings while no agent runs. All
methods run in the worker thread, except where stated otherwise; none of them uses the network.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from slurm_energy.agent.budget.device_ceilings import LEASE_FILE, DeviceCeilings
from slurm_energy.agent.budget.job_reports import JobReports
from slurm_energy.agent.budget.lease_file import Lease, LeaseFile
from slurm_energy.agent.budget.limited_devices import (
    LimitedDevice,
    confirmed_ceiling_watts,
)
from slurm_energy.agent.jobs import planner
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.live_power import NODE, LivePower
from slurm_energy.budget.messages import (
    MAX_DEVICE_WATTS,
    MAX_NODE_WATTS,
    DeviceReport,
    NodeDecision,
    NodePoll,
)
from slurm_energy.config import Config
from slurm_energy.control.arbitration import KnobDomains
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.quantities import shown

log = logging.getLogger(__name__)

_MIN_CHECK_S: Final = 0.1
_MAX_KIND: Final = 256
_SUBJECT: Final = "power budget"


class NodeBudget:
    """Power limits that budgets set for the devices of one node (ceilings).

    Args:
        devices: devices of the node.
        settings: writes ceilings and journals the original values.
        sessions: returns the sessions of the running jobs.
        power: current power of the devices.
        folder: state directory of the agent, in which the lease is stored.
        clock: clock of the machine.
        config: returns the current configuration.

    Attributes:
        poll_s: seconds until the next poll of the controller. Any thread may read this attribute.
        wants_poll: whether jobs started or ended since the last poll. Any thread may read this attribute.
        is_safe: whether the safe limits are in force. The node sets them by itself when its lease has ended.
    """

    def __init__(
        self,
        devices: NodeDevices,
        settings: SettingsManager,
        sessions: Callable[[], Iterable[Session]],
        power: LivePower,
        folder: Path,
        clock: Clock,
        config: Callable[[], Config],
    ) -> None:
        self.poll_s = config().budget.poll_s
        self.is_safe = self.wants_poll = False
        self._devices = devices
        self._settings = settings
        self._sessions = sessions
        self._reports = JobReports(sessions, settings.journal, config)
        self._power = power
        self._file = LeaseFile(folder / LEASE_FILE)
        self._clock = clock
        self._config = config
        self._domains = KnobDomains.from_hardware(devices.hardware)
        self._failures = RepeatedFailureLog(log)
        self._number = 0
        self._sampled_s = math.inf
        self._lease: Lease | None = None
        self._ceilings = DeviceCeilings(devices, settings, config)

    @property
    def is_active(self) -> bool:
        """Whether the configuration has power budgets, so that the controller is polled.

        Any thread may read this property.
        """
        return self._config().budget.mode != "off"

    def state(self) -> dict[str, Any]:
        """Return the state of the node's power budget for status pages.

        The state contains the ceiling (upper bound of the power limit) of each device. It also states
        whether the safe limits are in force, which apply without contact to the controller.
        """
        watts = {name: self._ceilings.watts(name) for name in self._ceilings.limited}
        return {
            "mode": self._config().budget.mode,
            "is_safe": self.is_safe,
            "ceilings_watts": {name: ceiling for name, ceiling in watts.items() if ceiling is not None},
        }

    @property
    def max_interval_s(self) -> float:
        """Maximum number of seconds until the next call of `check_lease`.

        `check_lease` sets safe power limits when the last decision of the controller has expired.
        """
        if self._lease is None or self.is_safe:
            return math.inf
        return max(_MIN_CHECK_S, self._lease.until_s - self._clock.boottime())

    def start(self) -> None:
        """Restore the power limits of this node when the agent starts.

        A lease is the last decision of the controller with the time until which its limits are valid. After
        a restart of the agent, the lease continues. After a reboot, the safe limits of the lease are set
        instead, before jobs start. The reason is that a reboot resets the power limits of the hardware, and
        that time has passed without the controller. If the configuration has no budgets, all ceilings are
        removed.
        """
        self._ceilings.find()
        self._sampled_s = self._clock.boottime()
        if not self.is_active:
            self.lift()
            return
        self._lease = self._file.load()
        if self._lease is None:
            return
        self._ceilings.keep()
        self._number = self._lease.decision.number
        if self._lease.boot_id != self._clock.boot_id:
            self._number = 0
            self._lease = Lease(self._lease.decision, self._clock.boot_id, -math.inf)
        self.check_lease()

    def lift_if_off(self) -> None:
        """Remove all power limits that a budget has set, if the configuration has no power budgets."""
        if not self.is_active and (self._lease is not None or self._has_ceilings):
            self.lift()

    def lift(self) -> None:
        """Remove the ceilings of all devices, because no power budget applies any more.

        A ceiling is the upper bound that a budget sets for a power limit. If no job requests a power limit
        for a device, the device gets its original power limit back.
        """
        if self._has_ceilings:
            self._settings.lift_ceilings()
        if self._has_ceilings:
            return
        try:
            self._file.remove()
        except OSError as error:
            self._failures.report(_SUBJECT, f"the lease is not removed: {error}")
        if self._lease is not None:
            log.info("power budget: none applies any more, limits are restored")
        self._lease, self._number, self.is_safe = None, 0, False

    def poll(self, node: str) -> NodePoll:
        """Return the state of the node for the controller. The caller must have taken a sample just before.

        Args:
            node: Slurm's name of the node.
        """
        self.wants_poll = False
        self.check_lease()
        self._ceilings.find()
        self._ceilings.keep()
        users = self._users()
        keys = [
            key
            for device in self._ceilings.limited.values()
            for key in (*device.limit_keys, *(f"powercap.enabled[{domain}]" for domain in device.domains))
        ]
        values = self._devices.read(keys)
        now_s = self._clock.boottime()
        watts = self._power.watts(now_s)
        return NodePoll(
            node=node,
            boot_id=self._clock.boot_id,
            number=self._number,
            devices=tuple(
                self._device_report(device, values, now_s, users[device.name])
                for device in self._ceilings.limited.values()
            ),
            node_watts=_bounded(watts.get(NODE), MAX_NODE_WATTS),
            dram_watts=_bounded(watts.get("dram"), MAX_NODE_WATTS),
            jobs=self._reports.collect(self._ceilings.limited.values()),
            is_safe=self.is_safe,
        )

    def apply(self, decision: NodeDecision, sent_s: float | None = None) -> None:
        """Put a decision of the controller about this node's power into force.

        The decision sets upper bounds (ceilings) of the devices' power limits. It also renews the lease,
        during which the node may use these bounds.

        Args:
            decision: the controller's decision, with the ceilings of the devices, safe limits and lease.
            sent_s: time in seconds since boot at which the request for the decision (poll) was sent. The
                lease starts at this time. None stands for the current time.
        """
        self.poll_s = decision.poll_s
        if decision.number == 0:
            self.lift()
            return
        self._ceilings.find()
        watts = {
            name: watts for name, watts in decision.limits_watts.items() if name in self._ceilings.limited
        }
        if not self._ceilings.set(watts):
            return
        if self.is_safe:
            log.info("power budget: decisions of the controller are in force again")
        self.is_safe = False
        until_s = (self._clock.boottime() if sent_s is None else sent_s) + decision.lease_s
        self._lease = Lease(decision, self._clock.boot_id, until_s)
        if self._is_confirmed(watts):
            self._number = decision.number
        self._store()

    def add_sample(self, now_s: float) -> None:
        """Account for a new sample of the node.

        A ceiling is the upper bound that a power budget sets for a device's power limit. The budget slows a
        job down if the ceiling of one of the job's devices is below the job's own power limit. For each job
        that the budget slows down, the time since the previous sample is added to `budget_capped_s`.

        If the lease (the time for which the ceilings are valid) has ended, the method also lowers the
        ceilings to the safe limits.

        Args:
            now_s: time at which the last sample of the node was taken, in seconds since boot.
        """
        last_s, self._sampled_s = self._sampled_s, now_s
        if self._has_ceilings:
            users = self._users()
            for session in self._sessions():
                names = [name for name, owners in users.items() if session.owner in owners]
                is_capped = [self._is_capped(name) for name in names]
                if not all(value is None for value in is_capped):
                    length_s = max(0.0, now_s - max(last_s, session.meter.start)) if any(is_capped) else 0.0
                    monitor = session.power_monitor
                    monitor.budget_capped_s = (monitor.budget_capped_s or 0.0) + length_s
        self.check_lease()

    def check_lease(self) -> None:
        """Lower the ceilings to the safe limits if the lease has ended.

        A ceiling is the upper bound of a device's power limit. The lease is the time for which the node may
        use the limits of the controller's last decision.
        """
        lease = self._lease
        if lease is not None and not self.is_safe and self._clock.boottime() > lease.until_s:
            self._enter_safe_state(f"no decision of the controller for {lease.decision.lease_s:g} s")

    def job_starts(self, session: Session) -> None:
        """Raise the ceilings (upper bounds of power limits) of the devices of a job that starts.

        The ceilings are raised to the start limits. The controller's last decision permits these limits until
        the controller knows the job. Only the ceilings of devices that no other job uses are raised. If the
        job shares the node, the ceiling of a package is not raised before the job's CPUs are known.

        Args:
            session: session of the job, which is among the running jobs already.
        """
        self.wants_poll = True
        if self._lease is None:
            return
        start_watts = dict(self._lease.decision.start_watts)
        if self.is_safe:
            safe_watts = self._lease.decision.safe_watts
            start_watts = {
                name: min(w, safe_watts[name]) for name, w in start_watts.items() if name in safe_watts
            }
        users = self._users()
        knows_cpus = session.whole_node or session.cpu_list is not None
        raised = {
            name: watts
            for name, watts in start_watts.items()
            if users.get(name) == {session.owner} and (knows_cpus or name.startswith("gpu"))
            if (ceiling := self._ceilings.watts(name)) is not None and ceiling < watts
        }
        self._ceilings.set(raised)

    def job_ended(self) -> None:
        """Lower the ceilings of devices without jobs to the devices' minimum limits.

        A ceiling is an upper bound of a device's power limit. A ceiling at the maximum of its device stays
        unchanged.
        """
        self.wants_poll = True
        if self._lease is None:
            return
        idle = [self._ceilings.limited[name] for name, owners in self._users().items() if not owners]
        ceilings = [(device, self._ceilings.watts(device.name)) for device in idle]
        limited = [
            device for device, watts in ceilings if watts is not None and watts < (device.max_watts or 0)
        ]
        self._ceilings.lower({device.name: device.min_watts or 0.0 for device in limited})

    @property
    def _has_ceilings(self) -> bool:
        return any(entry.ceiling is not None for entry in self._settings.journal.entries.values())

    def _users(self) -> dict[str, set[str]]:
        """Return the names of the jobs on each device, by the device's name."""
        hardware = self._devices.hardware
        jobs = {session.owner: planner.allocation(session, hardware) for session in self._sessions()}
        return {
            name: {
                owner
                for owner, allocation in jobs.items()
                if any(
                    self._domains.affects(f"power_limit[{d}]", allocation) for d in device.domains or (name,)
                )
            }
            for name, device in self._ceilings.limited.items()
        }

    def _device_report(
        self, device: LimitedDevice, values: Mapping[str, str], now_s: float, owners: Iterable[str]
    ) -> DeviceReport:
        journal = self._settings.journal
        return DeviceReport(
            name=device.name,
            kind=shown(device.kind, _MAX_KIND),
            min_watts=device.min_watts,
            max_watts=device.max_watts,
            limit_watts=device.limit_watts(values),
            watts=_bounded(self._power.device_watts(device.name, device.component, now_s), MAX_DEVICE_WATTS),
            job_ids=tuple(sorted({int(owner.partition(".")[0]) for owner in owners})),
            ceiling_watts=confirmed_ceiling_watts(device, self._devices, journal, values),
        )

    def _is_confirmed(self, watts: Mapping[str, float | None]) -> bool:
        """Return whether the hardware really holds the given ceilings of devices.

        A ceiling is an upper bound that a power budget sets on the power limit of a device.
        """
        journal = self._settings.journal
        for name, limit in watts.items():
            device = self._ceilings.limited[name]
            if limit is None or not device.domains:
                continue
            keys = (*device.limit_keys, *(f"powercap.enabled[{domain}]" for domain in device.domains))
            if confirmed_ceiling_watts(device, self._devices, journal, self._devices.read(keys)) is None:
                return False
        return True

    def _is_capped(self, name: str) -> bool | None:
        """Return whether a power budget holds a device below the power limit that its jobs request.

        Return None if the budget sets no upper bound (ceiling) for the device.
        """
        watts = self._ceilings.watts(name)
        if watts is None:
            return None
        device = self._ceilings.limited[name]
        own = (self._settings.value_without_ceiling(key) for key in device.limit_keys)
        return any(int(text) == 0 or device.watts_of(text) > watts for text in own if text is not None)

    def _enter_safe_state(self, reason: str) -> None:
        assert self._lease is not None
        if self._ceilings.lower(self._lease.decision.safe_watts):
            self.is_safe = True
            log.warning("power budget: %s: safe limits are in force", reason)

    def _store(self) -> None:
        if self._lease is None:
            return
        try:
            self._file.store(self._lease)
        except OSError as error:
            self._failures.report(_SUBJECT, f"the lease is not stored, a restart loses it: {error}")
        else:
            self._failures.clear(_SUBJECT, "the lease is stored again")


def _bounded(watts: float | None, maximum: float) -> float | None:
    """Return a measured power, limited to the range that a poll permits.

    A faulty sensor may report a power outside this range.
    """
    return None if watts is None or math.isnan(watts) else min(max(watts, 0.0), maximum)
