"""Ceilings of the devices of all nodes, kept so that the power budgets are never exceeded.

A ceiling is the maximum power limit that the controller allows a device. A ceiling is lowered at once. In
the sum of the ceilings, its old value is used until the node confirms the new value. A ceiling is raised
only if confirmed ceilings leave enough power. Therefore the sum of the ceilings in the hardware never
exceeds a budget, whatever the order of polls, lost messages and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_energy.budget.messages import DeviceReport, NodePoll
from slurm_energy.quantities import is_number
from slurm_energy.scheduling.queue import Floats, Ints

_KEPT_BOOTS = 8
_MAX_SENT = 8
_FIRST_ROWS = 64


@dataclass(frozen=True, slots=True)
class CeilingBudget:
    """A budget that limits the sum of the ceilings of its devices.

    A ceiling is the upper bound of a device's power limit.

    Attributes:
        rows: indices of the devices under the budget in the columns of `CeilingCommitment`.
        available_watts: limit of the budget minus the power that no ceiling controls.
    """

    rows: Ints
    available_watts: float


@dataclass(slots=True)
class _NodeCeilings:
    """Decisions about the ceilings of one node that the node has received or confirmed.

    A ceiling is the upper bound that a budget sets for the power limit of a device. A node confirms a
    decision in its next report (poll).

    Attributes:
        index: position of the node in the list of names.
        rows: for each device, the index of its row in the table of ceilings.
        boot_id: identifier of the current boot of the node; empty if unknown.
        earlier_boots: earlier boots of the node. Late polls of these boots are ignored.
        number: number of the current decision.
        confirmed: number of the last confirmed decision of this boot, or the number of the first decision
            that the node can confirm. A poll with a lower number confirms no decision.
        sent: ceilings in watts by row, for each sent decision by its number. Decisions that a later
            confirmed decision has replaced are left out.
        has_reported: whether the node has reported since this process started.
    """

    index: int
    rows: dict[str, int] = field(default_factory=dict)
    boot_id: str = ""
    earlier_boots: list[str] = field(default_factory=list)
    number: int = 1
    confirmed: int = 0
    sent: dict[int, dict[int, float]] = field(default_factory=dict)
    has_reported: bool = False


class CeilingCommitment:
    """Ceilings of the devices of all nodes: those that the nodes have confirmed, and those granted.

    A ceiling is the upper bound that power budgets set on a device's power limit. Each device has a row in
    the columns.

    Call `report` for each poll, and `grant` for each decision of the controller. After `grant`, store the
    result of `unsaved`. Only then call `decision` for the nodes that fetch their ceilings. After a restart,
    the stored state is therefore an upper bound of the ceilings that nodes may have received.

    Args:
        deadband_watts, deadband_ratio: minimum change of a ceiling, absolute and relative. Smaller changes
            are made only if a budget requires them.
    """

    def __init__(self, deadband_watts: float = 1.0, deadband_ratio: float = 0.01) -> None:
        self._deadband = (deadband_watts, deadband_ratio)
        self._nodes: dict[str, _NodeCeilings] = {}
        self._names: list[str] = []
        self._count = 0
        self._node_of_row = np.zeros(_FIRST_ROWS, np.int64)
        self._watts = np.zeros((3, _FIRST_ROWS))
        self._awaited: set[str] = set()
        self._awaited_until_s = -np.inf
        self._unsaved: set[str] = set()

    @property
    def count(self) -> int:
        """Number of devices, which is the length of each column."""
        return self._count

    @property
    def nameplate_watts(self) -> Floats:
        """Maximum power limit of each device, in the order in which this object lists the devices."""
        return self._watts[0, : self._count]

    @property
    def held_watts(self) -> Floats:
        """Highest ceiling that the hardware of each device may have now, in watts.

        A ceiling is the upper bound that power budgets set on a device's power limit. A lowered ceiling
        counts with its old value until the node confirms it.
        """
        return self._watts[1, : self._count]

    @property
    def granted_watts(self) -> Floats:
        """Power ceiling (highest permitted power limit) that the next decision gives to each device.

        The devices are in the order of the rows of the commitment's table.
        """
        return self._watts[2, : self._count]

    @property
    def reserved_watts(self) -> Floats:
        """Power in watts that is reserved for each device in its budgets, one element per device.

        A ceiling is the upper bound of a device's power limit. The reserved power is the larger of two
        ceilings: the highest ceiling that the hardware may have now, and the ceiling that the next decision
        gives to the device.
        """
        reserved: Floats = np.maximum(self.held_watts, self.granted_watts)
        return reserved

    @property
    def awaited(self) -> frozenset[str]:
        """Names of the nodes that have not reported since the call of `await_reports`."""
        return frozenset(self._awaited)

    def rows(self, node: str) -> Mapping[str, int]:
        """Return the row of each device of a node in the table of devices; empty for an unknown node."""
        state = self._nodes.get(node)
        return dict(state.rows) if state is not None else {}

    def register(self, node: str, nameplate_watts: Mapping[str, float]) -> None:
        """Add a node, or new devices of a known node, to the devices under power budgets.

        Until the node confirms lower power limits (ceilings), a new device counts with its nameplate power,
        the highest power limit that it can have.

        Args:
            node: Slurm's name of the node.
            nameplate_watts: maximum power limit of each device.
        """
        state = self._nodes.get(node)
        if state is None:
            state = self._nodes[node] = _NodeCeilings(index=len(self._names))
            self._names.append(node)
        if not nameplate_watts.keys() <= state.rows.keys():
            state.number += 1
            self._unsaved.add(node)
        for name, watts in nameplate_watts.items():
            row = state.rows.get(name)
            if row is None:
                state.rows[name] = self._add_row(state.index, watts)
            elif watts > self._watts[0, row]:
                self._watts[0, row] = watts

    def forget(self, node: str) -> None:
        """Remove a node that Slurm no longer has.

        The rows of its devices remain in the table, with 0 W.
        """
        state = self._nodes.pop(node, None)
        if state is None:
            return
        for row in state.rows.values():
            self._watts[:, row] = 0.0
        self._awaited.discard(node)
        self._unsaved.discard(node)

    def report(self, poll: NodePoll) -> None:
        """Process a poll of a node: update which power limits (ceilings) the node may have.

        A poll contains the number of the last decision that the node has applied and read back. The poll
        confirms this decision, which replaces all decisions with lower numbers. Decisions with higher
        numbers continue to count, because the node may still apply them. A poll from before a reboot of the
        node is ignored. A poll with a lower number than an earlier poll may be delayed. It does not lower
        the limits that the node may have.
        """
        self.register(poll.node, {d.name: d.max_watts for d in poll.devices if d.max_watts is not None})
        state = self._nodes[poll.node]
        if poll.boot_id in state.earlier_boots:
            return
        self._awaited.discard(poll.node)
        state.has_reported = True
        if poll.boot_id != state.boot_id:
            self._begin_boot(poll, state)
        if poll.number > state.number:
            # The stored state was lost: the node may hold a decision that this process does not know.
            state.number = state.confirmed = poll.number + 1
            self._unsaved.add(poll.node)
        confirms = poll.number >= state.confirmed
        if confirms:
            state.confirmed = poll.number
            state.sent = {number: sent for number, sent in state.sent.items() if number >= poll.number}
        for device in poll.devices:
            row = state.rows.get(device.name)
            if row is not None:
                bounds = [sent[row] for sent in state.sent.values() if row in sent]
                if not confirms:
                    bounds.append(float(self._watts[1, row]))
                held_watts = max(self._reported_bound(device, row), *bounds, 0.0)
                if held_watts != self._watts[1, row]:
                    self._unsaved.add(poll.node)
                self._watts[1, row] = held_watts

    def await_reports(self, until_s: float) -> None:
        """Do not raise the ceiling of any device until all known nodes have reported.

        A ceiling is the upper bound that power budgets set on a power limit.

        Args:
            until_s: time at which the wait ends at the latest. It is on the same clock as the time that is
                passed to the method `grant`.
        """
        self._awaited = {name for name, state in self._nodes.items() if not state.has_reported}
        self._awaited_until_s = until_s

    def grant(
        self,
        target_watts: Floats,
        budgets: Sequence[CeilingBudget],
        now_s: float,
        lowest_watts: Floats | None = None,
    ) -> None:
        """Set the ceilings (upper bounds of device power) of the next decisions.

        A ceiling is lowered at once. It is raised only within power that is confirmed as free.

        The raises of all devices may not fit under a budget. Then each device under the budget gets the same
        fraction of its raise. A device under several budgets gets the smallest of its fractions.

        Args:
            target_watts: target of each ceiling, in the order of the devices.
            budgets: all budgets in force.
            now_s: time on a monotonic clock.
            lowest_watts: minimum power that is counted for each device, in the order of the devices, even if
                its ceiling is lower. Such a minimum is needed if a device may draw more power than its
                ceiling, or if a job may start with a limit above the ceiling. None means that only ceilings
                count.
        """
        before, held = self.granted_watts, self.held_watts
        target = np.clip(target_watts, 0.0, self.nameplate_watts)
        small = np.abs(target - before) <= np.maximum(self._deadband[0], self._deadband[1] * before)
        wanted = np.where(small, before, target)
        lowest = np.zeros(self.count) if lowest_watts is None else lowest_watts
        base, counted = np.maximum(held, lowest), np.maximum(wanted, lowest)
        for budget in budgets:
            if float(counted[budget.rows].sum()) > budget.available_watts:
                wanted[budget.rows] = np.minimum(wanted[budget.rows], target[budget.rows])
        raises = np.maximum(0.0, wanted - held)
        added = np.maximum(0.0, wanted - base)
        part = np.zeros(self.count)
        if not self._awaited or now_s >= self._awaited_until_s:
            part = raise_ratios(added, base, budgets)
        self._set_granted(np.where(raises > 0, held + part * raises, wanted))

    def withdraw_raises(self) -> None:
        """Withdraw raised ceilings (upper bounds of power limits) that no node has fetched yet.

        This is necessary if the state of the nodes could not be stored.
        """
        self._set_granted(np.minimum(self.granted_watts, self.held_watts))

    def release(self, node: str) -> None:
        """Record that a node is no longer limited by power budgets.

        From now on the node is assumed to draw up to its nameplate power. The method is called after a
        decision has told the node that no budget applies.
        """
        state = self._nodes.get(node)
        rows = [] if state is None else list(state.rows.values())
        if state is None or bool(np.all(self.held_watts[rows] >= self.nameplate_watts[rows])):
            return
        self.held_watts[rows] = np.maximum(self.held_watts[rows], self.nameplate_watts[rows])
        # Earlier polls no longer describe the state of the node.
        state.number += 1
        state.confirmed = state.number
        self._unsaved.add(node)

    def decision(self, node: str) -> tuple[int, dict[str, float]]:
        """Return the number and the ceilings of a node's decision, and record the decision as sent.

        A ceiling is the upper bound that a power budget sets for the power limit of a device.

        Returns:
            Number of the decision and ceiling by device; number 0 and no ceilings for an unknown node.
        """
        state = self._nodes.get(node)
        if state is None:
            return 0, {}
        ceilings = {name: float(self._watts[2, row]) for name, row in state.rows.items()}
        if state.number not in state.sent:
            state.sent[state.number] = {row: ceilings[name] for name, row in state.rows.items()}
            for row, watts in state.sent[state.number].items():
                self._watts[1, row] = max(float(self._watts[1, row]), watts)
            if len(state.sent) > _MAX_SENT:
                _merge_oldest(state.sent)
        return state.number, ceilings

    def unsaved(self) -> dict[str, dict[str, Any]]:
        """Return the states of nodes that have changed since the last call, for the database.

        Each state is a dict that can be stored as JSON.
        """
        columns = np.stack([self.nameplate_watts, self.reserved_watts, self.granted_watts], axis=1).tolist()
        states = {name: _to_json(self._nodes[name], columns) for name in sorted(self._unsaved)}
        self._unsaved.clear()
        return states

    def restore(self, states: Mapping[str, Any]) -> list[str]:
        """Restore the ceilings of all nodes from their stored states.

        A ceiling is the upper bound that a budget sets for the power limit of a device. Call this method
        once, before the first report (poll) of a node arrives.

        Returns:
            Names of the nodes whose stored state is damaged. The ceilings of these nodes count as unknown,
            like those of nodes that have never reported.
        """
        damaged = []
        for name, data in states.items():
            if _is_state(data):
                self._restore_node(name, data)
            else:
                damaged.append(name)
        self._unsaved.clear()
        return damaged

    def _add_row(self, node: int, nameplate_watts: float) -> int:
        """Add a device to the table of ceilings, and return its index in the table.

        At first, budgets count the device with its nameplate (maximum) power.
        """
        row = self._count
        if row == len(self._node_of_row):
            self._node_of_row = np.append(self._node_of_row, np.zeros(row, np.int64))
            self._watts = np.append(self._watts, np.zeros((3, row)), axis=1)
        self._count += 1
        self._node_of_row[row] = node
        self._watts[:, row] = nameplate_watts
        return row

    def _set_granted(self, granted_watts: Floats) -> None:
        """Set the power limits (ceilings) that the next decisions contain.

        The decision number of each node with a changed limit increases by one.
        """
        changed = np.flatnonzero(granted_watts != self.granted_watts)
        for index in np.unique(self._node_of_row[changed]):
            name = self._names[index]
            if name in self._nodes:
                self._nodes[name].number += 1
                self._unsaved.add(name)
        self.granted_watts[:] = granted_watts

    def _begin_boot(self, poll: NodePoll, state: _NodeCeilings) -> None:
        """Discard the limits that were sent to a node before it was booted again.

        They no longer apply after the boot.
        """
        if state.boot_id:
            state.earlier_boots = [*state.earlier_boots, state.boot_id][-_KEPT_BOOTS:]
            state.sent.clear()
            state.confirmed = 0
        state.boot_id = poll.boot_id
        self._unsaved.add(poll.node)

    def _reported_bound(self, device: DeviceReport, row: int) -> float:
        """Return the highest power limit that may be in force on the device, according to the node."""
        if device.ceiling_watts is None:
            return float(self._watts[0, row])
        return max(device.ceiling_watts, device.limit_watts or 0.0)

    def _restore_node(self, name: str, data: Mapping[str, Any]) -> None:
        self.register(name, {device: float(watts[0]) for device, watts in data["devices"].items()})
        state = self._nodes[name]
        state.boot_id, state.earlier_boots = data["boot_id"], list(data["earlier_boots"])
        state.number = data["number"]
        for device, watts in data["devices"].items():
            row = state.rows[device]
            self._watts[1:, row] = watts[1:]
        # The node may have fetched this decision or an earlier one.
        state.sent = {state.number: {row: float(self._watts[1, row]) for row in state.rows.values()}}
        state.number += 1


def _to_json(state: _NodeCeilings, columns: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the stored state of the power limits of one node as a dict for JSON.

    Args:
        state: ceilings (upper bounds of the power limits) of the node's devices.
        columns: nameplate, reserved and granted power by row. Each device has one row.
    """
    return {
        "boot_id": state.boot_id,
        "earlier_boots": state.earlier_boots,
        "number": state.number,
        "devices": {name: columns[row] for name, row in state.rows.items()},
    }


def raise_ratios(raises: Floats, base: Floats, budgets: Iterable[CeilingBudget]) -> Floats:
    """Return the fraction of each raise of a ceiling that is possible under all power budgets.

    A ceiling is the upper bound of a device's power limit. A raise is a requested increase of a ceiling. The
    fractions are from 0 to 1.

    Args:
        raises: requested increase of each ceiling, by row.
        base: power that budgets count for each device without the raise, by row.
        budgets: budgets that the ceilings must keep.
    """
    part = np.ones(len(raises))
    for budget in budgets:
        wanted = float(raises[budget.rows].sum())
        free = max(0.0, budget.available_watts - float(base[budget.rows].sum()))
        if wanted > free:
            part[budget.rows] = np.minimum(part[budget.rows], free / wanted)
    return part


def _merge_oldest(sent: dict[int, dict[int, float]]) -> None:
    """Merge the two oldest decisions that were sent to a node into one decision.

    Each decision sets ceilings, which are upper bounds of the power limits of devices. The merged
    decision has the number of the later decision. For each device it has the larger of the two ceilings.
    """
    first, second = sorted(sent)[:2]
    for row, watts in sent.pop(first).items():
        sent[second][row] = max(watts, sent[second].get(row, 0.0))


def _is_state(data: Any) -> bool:
    """Return whether `data` is a valid state of a node's ceilings, as read from the database.

    A ceiling is the upper bound that a power budget sets for the power limit of a device. `unsaved`
    returns the states that are stored.
    """
    if not isinstance(data, dict) or not isinstance(data.get("devices"), dict):
        return False
    boots = data.get("earlier_boots")
    return (
        isinstance(data.get("boot_id"), str)
        and isinstance(boots, list)
        and all(isinstance(boot, str) for boot in boots)
        and type(data.get("number")) is int
        and all(
            isinstance(watts, list) and len(watts) == 3 and all(is_number(w) and w >= 0 for w in watts)
            for watts in data["devices"].values()
        )
    )
