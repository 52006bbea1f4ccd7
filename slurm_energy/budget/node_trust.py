"""Detection of nodes that report wrong measurements or limits.

A node becomes distrusted if its reports contradict each other.

A distrusted node counts with its nameplate power, because neither its power nor its ceilings (power limits
in force) are certain.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.budget.messages import DeviceReport, NodePoll

_MIN_POLLS = 3
_SHORT_S, _LONG_S = 3.0, 15.0
"""Seconds for which a contradiction must last. A power limit needs its time window to take effect, and
sensors of whole nodes lag behind those of devices."""
_ZERO_WATTS = 0.1
"""No package or GPU that is on draws less."""
_MAX_OVER_NAMEPLATE = 1.5
"""Packages exceed their limit for short times, but not by more."""
_MAX_OVER_CEILING, _CEILING_WATTS = 1.25, 10.0
_LIMIT_RATIO, _LIMIT_WATTS = 1.02, 1.0
_MIN_NODE_PART, _NODE_WATTS = 0.7, 50.0
_MAX_NODE_PART, _OTHER_PARTS_WATTS = 2.0, 1500.0
_RECOVERY_S, _MAX_RECOVERY_S = 30.0, 3600.0


class NodeTrust:
    """Trust in the reports of one node.

    A contradiction that lasts some seconds makes the node distrusted. The node is trusted again after a time
    without contradictions. This time doubles with each relapse within an hour.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._polls: dict[str, int] = {}
        self._reason: str | None = None
        self._plausible_since_s: float | None = None
        self._recovered_s: float | None = None
        self._recovery_s = _RECOVERY_S

    @property
    def reason(self) -> str | None:
        """Reason why the node is distrusted, in a few words; None while the node is trusted."""
        return self._reason

    def observe(self, poll: NodePoll, now_s: float) -> None:
        """Update the trust in a node: compare the values of its latest poll with each other.

        A contradiction that lasts too long ends the trust.

        Args:
            poll: report of the node's agent.
            now_s: time of the poll on a monotonic clock.
        """
        contradictions = dict(_contradictions(poll))
        for key in list(self._since_s):
            if key not in contradictions:
                del self._since_s[key], self._polls[key]
        for key, (reason, duration_s) in contradictions.items():
            since_s = self._since_s.setdefault(key, now_s)
            self._polls[key] = self._polls.get(key, 0) + 1
            if self._polls[key] >= _MIN_POLLS and now_s - since_s >= duration_s:
                self._distrust(reason, now_s)
        if contradictions:
            self._plausible_since_s = None
        elif self._plausible_since_s is None:
            self._plausible_since_s = now_s
        elif self._reason is not None and now_s - self._plausible_since_s >= self._recovery_s:
            self._reason, self._recovered_s = None, now_s

    def _distrust(self, reason: str, now_s: float) -> None:
        if self._reason is None:
            is_relapse = self._recovered_s is not None and now_s - self._recovered_s < _MAX_RECOVERY_S
            self._recovery_s = min(2 * self._recovery_s, _MAX_RECOVERY_S) if is_relapse else _RECOVERY_S
        self._reason = reason


def _contradictions(poll: NodePoll) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield contradictions in the power values that a node reports.

    A contradiction counts only if it lasts for a minimum duration. Each item is (key, (reason, minimum
    duration in seconds)). The key identifies the kind of contradiction.
    """
    for device in poll.devices:
        yield from _device_contradictions(device)
    measured = [device.watts for device in poll.devices if device.watts is not None]
    node_watts = poll.node_watts
    if node_watts is None:
        return
    if node_watts < _ZERO_WATTS:
        yield "node zero", (f"the node reports {node_watts:.0f} W", _SHORT_S)
    elif node_watts < _MIN_NODE_PART * sum(measured) - _NODE_WATTS:
        reason = f"the node reports {node_watts:.0f} W, its devices together {sum(measured):.0f} W"
        yield "node low", (reason, _LONG_S)
    maxima = [device.max_watts for device in poll.devices]
    known = [watts for watts in maxima if watts is not None]
    if len(known) == len(maxima) and node_watts > _MAX_NODE_PART * sum(known) + _OTHER_PARTS_WATTS:
        reason = f"the node reports {node_watts:.0f} W, the maximum of its devices is {sum(known):.0f} W"
        yield "node high", (reason, _SHORT_S)


def _device_contradictions(device: DeviceReport) -> Iterator[tuple[str, tuple[str, float]]]:
    name, watts, ceiling = device.name, device.watts, device.ceiling_watts
    bound = max(ceiling or 0.0, device.min_watts or 0.0)  # a limit below the minimum cannot be reached
    if watts is not None and watts < _ZERO_WATTS:
        yield f"{name} zero", (f"{name} reports {watts:.0f} W", _SHORT_S)
    if watts is not None and device.max_watts is not None and watts > _MAX_OVER_NAMEPLATE * device.max_watts:
        reason = f"{name} reports {watts:.0f} W, its maximum limit is {device.max_watts:.0f} W"
        yield f"{name} high", (reason, _SHORT_S)
    elif watts is not None and ceiling is not None and watts > _MAX_OVER_CEILING * bound + _CEILING_WATTS:
        yield f"{name} ceiling", (f"{name} draws {watts:.0f} W at a ceiling of {ceiling:.0f} W", _LONG_S)
    limit = device.limit_watts
    if limit is not None and ceiling is not None and limit > _LIMIT_RATIO * ceiling + _LIMIT_WATTS:
        reason = f"{name} has a limit of {limit:.0f} W above its ceiling of {ceiling:.0f} W"
        yield f"{name} limit", (reason, _SHORT_S)
