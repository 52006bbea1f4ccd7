"""The node's books: what every component used, and who pays. Each microjoule is booked once.

Takes intervals with the jobs that were there and gives each job its part by the rule of docs/attribution.md.
Reads no hardware. For every component: jobs + idle + unattributed = measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.agent.metering.attribution import (
    BY_CPU_TIME,
    OTHER,
    Moved,
    NodeInterval,
    Split,
    gpu_index,
    node_rest,
    split,
)
from slurm_energy.agent.metering.component_account import LONGEST_WAIT_S, SLACK_S, Line
from slurm_energy.agent.metering.idle_power import QUIET_BUSY_SHARE, IdlePower
from slurm_energy.agent.metering.job_meter import Booking
from slurm_energy.agent.metering.occupancy import GONE, Occupant, Span, Used, span
from slurm_energy.agent.metering.sampler import Interval
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.log_once import Complaints

_OTHER_SPAN_S = 10.0
"""Meters of nodes lag and average; over less, what their lag moves about would be split, not energy."""
_ALONE_SPAN_S = 1.0
"""They are updated ten times a second or less often, so that samples in between show parts only."""
_LONGEST_READING_S = 0.05
"""Where readings took longer, the node's meter may be that much ahead of its parts: the next ones tell."""
_MOST_DEBT_S = 30.0
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
        self._lines = {name: Line(tuple(of)) for name, of in keys.items()}
        self._gpus = [gpu_index(name) for name in self._lines if name.startswith("gpu[")]
        node = tuple(counter.key for counter in devices.node_counters)
        if node:
            self._lines[OTHER] = Line(node)
        # What the node's meter lacks is added to it, so that it is no part of the difference either.
        self._inside = {
            name for name in keys if name.partition("[")[0] not in devices.selection.added_parts and node
        }
        self._inside_uj = 0
        self._debt_uj = 0
        self._moved = Moved()
        self._complaints = Complaints()

    def add(
        self, interval: Interval, occupants: Sequence[Occupant], used: Used, *, settle: bool = False
    ) -> dict[str, Booking]:
        """Book an interval.

        Args:
            interval: what the counters told.
            occupants: the jobs that were there all the time.
            used: CPU time in it.
            settle: a job's or step's time begins or ends here: what can be booked is.

        Returns:
            By job what it pays; every occupant has an entry.
        """
        self.idle.sampled(interval.read_s)
        piece = span(interval.start, interval.end, self._cpus, self._gpus, occupants, used)
        ready: dict[int, tuple[Span, list[str]]] = {}
        for name, line in self._lines.items():
            if name == OTHER:
                continue
            if line.take(interval) and (used.complete or name not in BY_CPU_TIME):
                whole = line.close(piece)
                ready.setdefault(id(whole), (whole, []))[1].append(name)
            else:
                line.wait(piece)
        draft = _Draft(interval, occupants)
        for whole, names in ready.values():
            self._book(whole, {name: self._lines[name].energy_uj for name in names}, draft)
        self._book_other(interval, piece, draft, settle)
        draft.waiting = frozenset(name for name, line in self._lines.items() if line.open is not None)
        return draft.bookings()

    def leave(self, job: str, now: float) -> dict[str, float]:
        """Let a job go; what is still to be told of its time is nobody's.

        Returns:
            Seconds by component of which it does not get its part any more.
        """
        lost: dict[str, float] = {}
        for name, line in self._lines.items():
            if line.open is not None and job in line.open.since:
                lost[name] = max(0.0, now - max(line.open.start, line.open.since[job]))
                line.open = line.open.without(job)
        if job in self._moved.jobs:
            jobs = {name: uj for name, uj in self._moved.jobs.items() if name != job}
            self._moved = Moved(jobs, self._moved.rest + self._moved.jobs[job])
        return lost

    def sums(self) -> dict[str, dict[str, int]]:
        """Return the books in microjoules by component: `jobs`, `idle` and `unattributed` are `measured`."""
        return {
            name: {
                "measured": line.measured_uj,
                "jobs": line.jobs_uj,
                "idle": line.idle_uj,
                "unattributed": line.unattributed_uj,
            }
            for name, line in self._lines.items()
        }

    def write_off(self, energy_uj: Mapping[str, int]) -> None:
        """Take back what a job was given that nobody remembers."""
        for name, energy in energy_uj.items():
            if name in self._lines:
                self._lines[name].jobs_uj -= energy
                self._lines[name].unattributed_uj += energy

    def dump(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {
            "lines": {name: line.dump() for name, line in self._lines.items()},
            "inside_uj": self._inside_uj,
            "debt_uj": self._debt_uj,
            "moved": {"jobs": dict(self._moved.jobs), "rest": self._moved.rest},
            "idle": self.idle.dump(),
        }

    def load(self, data: Mapping[str, Any], *, same_boot: bool) -> None:
        """Go on from the output of `dump`; after another boot only with what is booked."""
        for name, line in self._lines.items():
            if name in data["lines"]:
                line.load(data["lines"][name])
            if not same_boot:
                line.energy_uj, line.behind, line.doubt, line.open, line.lost = 0, {}, [], None, {}
                line.left_out = {}
        if same_boot:
            self._inside_uj, self._debt_uj = data["inside_uj"], data["debt_uj"]
            self._moved = Moved(data["moved"]["jobs"], data["moved"]["rest"])
        self.idle.learned_watts.update(data["idle"])

    def _book(self, whole: Span, energy_uj: Mapping[str, int], draft: _Draft) -> None:
        """Split energy that was told for a span, and note it in the lines."""
        if whole.sole is not None:
            self._book_sole(whole, whole.sole, energy_uj, draft)
            return
        result = self._split(whole, energy_uj)
        for name, energy in energy_uj.items():
            line = self._lines[name]
            gone = result.jobs.get(GONE, {}).get(name, 0)
            line.idle_uj += result.idle[name]
            line.unattributed_uj += result.unattributed[name] + gone
            line.jobs_uj += sum(parts[name] for parts in result.jobs.values()) - gone
            line.measured_uj += energy
            if name in self._inside:
                self._inside_uj += energy
            draft.note(name, whole, line, result)
            if not line.doubt:
                self.idle.observe(whole.length_s, {name: energy}, [name] if _is_quiet(name, whole) else [])
            line.energy_uj, line.doubt, line.lost = 0, [], {}
        if OTHER in self._lines and OTHER not in energy_uj:
            self._moved = result.moved

    def _book_sole(self, whole: Span, sole: str, energy_uj: Mapping[str, int], draft: _Draft) -> None:
        """Book all of a span for the job that had the node for itself; on most nodes that is every sample."""
        self.idle.observe(whole.length_s, energy_uj, ())
        for name, energy in energy_uj.items():
            line = self._lines[name]
            line.jobs_uj += energy
            line.measured_uj += energy
            if name in self._inside:
                self._inside_uj += energy
            draft.told[name] = energy
            draft.doubt += line.doubt
            draft.give(sole, name, energy, whole, line)
            line.energy_uj, line.doubt, line.lost = 0, [], {}
        if OTHER in self._lines and OTHER not in energy_uj:
            mine = self._moved.jobs.get(sole, 0) + sum(energy_uj.values())
            self._moved = Moved({**self._moved.jobs, sole: mine}, self._moved.rest)

    def _split(self, whole: Span, energy_uj: Mapping[str, int]) -> Split:
        interval = NodeInterval(
            capacity_ns=whole.capacity_ns,
            busy_ns=whole.busy_ns,
            energy_uj=energy_uj,
            static_uj=self.idle.static_uj(whole.length_s, energy_uj),
            moved=self._moved,
            gpus=tuple(name for name in self._lines if name.startswith("gpu[")),
        )
        return split(interval, whole.claims())

    def _book_other(self, interval: Interval, piece: Span, draft: _Draft, settle: bool) -> None:
        """Book what the node's meter shows beyond the parts, once both are told for the same time."""
        line = self._lines.get(OTHER)
        if line is None:
            return
        was_open = line.open is not None
        told = line.take(interval)
        if was_open and line.open is None:  # its meter begins to tell: what parts used before is not in it
            self._inside_uj = sum(draft.told.get(name, 0) for name in self._inside)
            self._debt_uj, self._moved = 0, Moved()
        late = [self._lines[name].open for name in self._inside]
        waits = any(open_ is not None and interval.end - open_.start < LONGEST_WAIT_S for open_ in late)
        for start, end in draft.doubt:
            line.doubt_between(start, end)
        start = line.open.start if line.open is not None else piece.start
        alone = piece.sole is not None and interval.read_s <= _LONGEST_READING_S
        least_s = (_ALONE_SPAN_S if alone else _OTHER_SPAN_S) - SLACK_S
        young = not settle and interval.end - start < least_s
        if not told or waits or young:
            line.wait(piece)
            return
        whole = line.close(piece)
        rest_uj, debt_uj = node_rest(line.energy_uj, self._inside_uj, self._debt_uj)
        self._debt_uj = self._bounded(debt_uj, line.energy_uj, whole.length_s)
        self._inside_uj = 0
        self._book(whole, {OTHER: rest_uj}, draft)
        self._moved = Moved()

    def _bounded(self, debt_uj: int, node_uj: int, length_s: float) -> int:
        if length_s < _ALONE_SPAN_S - SLACK_S:  # says nothing of their powers
            return debt_uj
        most_uj = round(node_uj * _MOST_DEBT_S / length_s)
        if debt_uj <= most_uj:
            self._complaints.settle("meter of the node", "shows as much as its parts again")
            return debt_uj
        self._complaints.tell("meter of the node", "shows less than the node's parts together")
        return most_uj


class _Draft:
    """Collects what an interval brings to each occupant."""

    def __init__(self, interval: Interval, occupants: Sequence[Occupant]) -> None:
        self._interval = interval
        self._tenants = occupants
        self._sizeless = {t.job for t in occupants if t.cpus is None and not t.whole}
        self._energy: dict[str, dict[str, int]] = {occupant.job: {} for occupant in occupants}
        self._since: dict[str, dict[str, float]] = {occupant.job: {} for occupant in occupants}
        self._doubtful: dict[str, dict[str, float]] = {occupant.job: {} for occupant in occupants}
        self._assumed: dict[str, set[str]] = {occupant.job: set() for occupant in occupants}
        self.told: dict[str, int] = {}
        self.doubt: list[tuple[float, float]] = []
        self.waiting: frozenset[str] = frozenset()

    def note(self, name: str, whole: Span, line: Line, result: Split) -> None:
        """Note the split of one component's energy."""
        self.told[name] = line.energy_uj
        self.doubt += line.doubt
        for job in self._energy:
            if job not in result.jobs or (not result.jobs[job][name] and self._is_unknown(name, job, whole)):
                continue
            self.give(job, name, result.jobs[job][name], whole, line)
            if _is_assumed(name, job, whole):
                self._assumed[job].add(name)

    def give(self, job: str, name: str, energy_uj: int, whole: Span, line: Line) -> None:
        """Note what a job, if it is still there, gets of one component's energy."""
        if (energy := self._energy.get(job)) is None:
            return
        energy[name] = energy_uj
        since = max(whole.start, whole.since[job])
        if since < self._interval.start:
            self._since[job][name] = since
        if line.doubt and (doubtful_s := line.doubtful_s(job, since)) > 0:
            self._doubtful[job][name] = doubtful_s

    def _is_unknown(self, name: str, job: str, whole: Span) -> bool:
        """Return whether nothing tells what a job holds or does: it was given nothing, which is no figure."""
        by_cpu = name in BY_CPU_TIME or name == OTHER
        return by_cpu and job in self._sizeless and whole.cpu_ns.get(job) is None

    def bookings(self) -> dict[str, Booking]:
        """Return the result."""
        return {
            job: Booking(
                self._interval.start,
                self._interval.end,
                energy,
                self._since[job],
                self.waiting,
                self._doubtful[job],
                frozenset(self._assumed[job]),
                self._interval.throttled_s,
                self._interval.read_s / 2,
            )
            for job, energy in self._energy.items()
        }


def _is_assumed(name: str, job: str, whole: Span) -> bool:
    """Return whether it is an assumption how much of a component is the job's: others are there too."""
    if not name.startswith("gpu["):
        return True
    index = gpu_index(name)
    share_ns = whole.gpu_ns.get(job, {}).get(index, 0)
    there_s = whole.length_s - max(0.0, whole.since[job] - whole.start)
    return share_ns > 0 and (len(whole.holders(index)) > 1 or share_ns < 0.999e9 * there_s)


def _is_quiet(name: str, whole: Span) -> bool:
    """Return whether nobody used a component in a span."""
    if name.startswith("gpu["):
        return not whole.holders(gpu_index(name))
    held = any(any(held.values()) for held in whole.gpu_ns.values())
    if whole.busy_ns is None or (name == OTHER and held):
        return False
    return whole.busy_ns <= QUIET_BUSY_SHARE * whole.capacity_ns
