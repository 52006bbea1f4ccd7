"""Periodic power saving in senergyctld. While senergyctld does not run, Slurm boots nodes for jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.accounting.history.node_arrivals import read_node_arrivals
from slurm_energy.accounting.records.off_periods import OffPeriod, store_off_periods
from slurm_energy.config import Config
from slurm_energy.controller.budgets.away_power import AwayPower
from slurm_energy.controller.budgets.facts import BudgetScope, ScopeKind
from slurm_energy.controller.budgets.loop import BudgetLoop
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.controller.periodic_tasks import run_together
from slurm_energy.controller.power_saving.boot_wait_server import BootWaitServer
from slurm_energy.controller.power_saving.node_boots import NodeBoots, PowerPhase
from slurm_energy.controller.power_saving.off_recorder import OffRecorder
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import EnergyError, UnavailableError, install_extra
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.power_saving.boot_headroom import BootHeadroom
from slurm_energy.slurm.command import CommandRunner, Runner
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.slurm.node_power_states import read_power_states

if TYPE_CHECKING:
    from slurm_energy.controller.power_saving.engine import CycleReport, PowerSavingEngine

_OFF_PAUSE_S: Final = 5.0
MAX_UNSTORED: Final = 100_000
"""Maximum number of periods kept while the database is away: those of 10,000 nodes in two hours."""
_DAY_S: Final = 86400.0
_RECENT: Final = 20
_READ_TIMEOUT_S: Final = 8.0
_PROGRAM_TIMEOUT_S: Final = 10.0
_LEARNED_FILE: Final = "node-boots.json"
_OFF_PERIODS: Final = "periods of nodes that are off"
_PROGRAM: Final = "power_saving.power_program"
_SUBJECT: Final = "power saving"
_NODE: Final = "node"

log = logging.getLogger(__name__)


class PowerSavingLoop:
    """Loop of senergyctld that powers idle nodes down, and up again when they are needed.

    Args:
        config: function that returns the configuration.
        store: the database.
        live: the last live report of each node, for the power of idle nodes.
        budget: the power budgets. A node is booted only if the budgets have enough unused power.
        failures: log of failures; a repeated failure is logged once.
        run: function that runs Slurm's commands.
        clock: function that returns Unix seconds.
        history: history of measured runs; None means that jobs are expected to run until their time limits.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        live: LiveReports,
        budget: BudgetLoop,
        failures: RepeatedFailureLog,
        run: Runner | None = None,
        clock: Callable[[], float] = time.time,
        history: HistoryCache | None = None,
    ) -> None:
        self._history = history
        self._config, self._store, self._live = config, store, live
        self._budget, self._failures, self._clock = budget, failures, clock
        self._run = run or CommandRunner()
        self._read_states = CommandRunner(_READ_TIMEOUT_S)
        self._boots = NodeBoots()
        self._away = AwayPower(self._boots, config().controller.state_folder / _LEARNED_FILE)
        self._off = OffRecorder()
        self._unstored_off: deque[OffPeriod] = deque(maxlen=MAX_UNSTORED)
        self._follow_states, self._program = CommandRunner(_READ_TIMEOUT_S), CommandRunner(_PROGRAM_TIMEOUT_S)
        self._boot_waits = BootWaitServer(
            *(self._boot_socket, lambda: read_power_states(self._read_states), self._boots, failures, clock)
        )
        self._unexpected = UnexpectedErrorLog(log)
        self._engine: PowerSavingEngine | None = None
        self._report: CycleReport | None = None
        self._idle_watts: dict[str, float] = {}
        self._learned_s: float | None = None
        self._decided: float | None = None
        self._error = ""
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)

    async def loop(self) -> None:
        """Run the power saving in the background until the task is cancelled.

        The task decides periodically which nodes to power down or up, and serves the boot socket.
        """
        try:
            await run_together(self._decide(), self._boot_waits.loop(), self._measure())
        except asyncio.CancelledError:  # after an error, the task starts again and needs the commands
            for one in (self._read_states, self._follow_states, self._program):
                one.stop()
            if isinstance(self._run, CommandRunner):
                self._run.stop()
            raise

    async def _decide(self) -> None:
        while True:
            settings = self._config().power_saving
            if settings.mode == "off":
                self._report, self._error = None, ""
                await asyncio.sleep(_OFF_PAUSE_S)
                continue
            await self.update()
            await asyncio.sleep(settings.cycle_s)

    async def _measure(self) -> None:
        """Read the power of nodes that are off, booting or shutting down. Learn from the readings."""
        while True:
            settings = self._config().power_saving
            if settings.mode != "off":
                try:
                    await asyncio.to_thread(self._measure_once, settings.power_program)
                except EnergyError as error:
                    self._failures.report(_PROGRAM, str(error))
                else:
                    self._failures.clear(_PROGRAM)
                await self._record_off()
                if self._budget.parts is not None:
                    self._budget.parts.inputs.off_watts = self._away.off_watts
            await asyncio.sleep(settings.power_program_interval_s)

    async def _record_off(self) -> None:
        """Store the periods in which nodes were off, with the energy measured in these periods.

        Periods that cannot be stored are kept for the next call. The oldest of too many periods are dropped.
        """
        off = [name for name, (phase, _) in self._boots.away().items() if phase is PowerPhase.OFF]
        now = self._clock()
        self._unstored_off += self._off.update({name: self._away.off_watts.get(name) for name in off}, now)
        if not self._unstored_off:
            return
        cluster = self._config().cluster.name
        try:
            await self._store.write(store_off_periods, cluster, list(self._unstored_off), now)
        except EnergyError as error:
            self._failures.report(_OFF_PERIODS, str(error))
        else:
            self._unstored_off.clear()
            self._failures.clear(_OFF_PERIODS)

    def _measure_once(self, program: Path | None) -> None:
        if program is not None and self._boots.away():
            self._boots.observe(read_power_states(self._follow_states), self._clock())
        self._away.learn()
        if program is not None:
            self._away.read(program, self._program, self._clock())

    def _boot_socket(self) -> Path | None:
        settings = self._config().power_saving
        return None if settings.mode == "off" else settings.boot_socket

    async def update(self) -> None:
        """Run one cycle of power saving. A failed cycle leaves the results of the previous cycle in force."""
        try:
            await self._cycle()
        except EnergyError as error:
            self._error = str(error)
            self._failures.report(_SUBJECT, self._error)
        except Exception as error:
            self._error = f"{type(error).__name__}"
            self._unexpected.report(error, _SUBJECT)
        else:
            self._error = ""
            self._failures.clear(_SUBJECT)

    async def _cycle(self) -> None:
        config = self._config()
        engine = self._engine = self._engine or self._new_engine()
        now = self._clock()
        if self._learned_s is None or now - self._learned_s >= 3600.0:
            since = now - config.power_saving.history_days * _DAY_S
            arrivals = await self._store.read(read_node_arrivals, config.cluster.name, since)
            await asyncio.to_thread(engine.learn, arrivals, since, now)
            self._learned_s = now
        self._observe_power()
        self._report = await asyncio.to_thread(
            engine.cycle, config.power_saving, dict(self._idle_watts), boot_headrooms(self._budget)
        )
        self._decided = now
        self._boot_waits.max_age_s = 1.5 * config.power_saving.cycle_s
        self._boot_waits.slurm_uid = engine.slurm_uid
        self._boot_waits.timeout_s = engine.boot_wait_s or self._boot_waits.timeout_s
        self._note_changes(self._report, now)

    def _new_engine(self) -> PowerSavingEngine:
        try:
            from slurm_energy.controller.power_saving.engine import PowerSavingEngine
            from slurm_energy.controller.power_saving.expected_run_times import ExpectedRunTimes
        except ImportError:
            todo = f"{install_extra('scheduling')}, or power_saving.mode = off"
            raise UnavailableError(_SUBJECT, "numpy is not installed", todo) from None
        times = ExpectedRunTimes(self._config(), self._run, self._history)
        return PowerSavingEngine(self._run, self._clock, self._boots, self._away, times.read)

    def _observe_power(self) -> None:
        """Record the lowest measured power of each node, which is assumed to be the node's idle power."""
        for state in self._live.nodes():
            watts = _node_watts(state.watts)
            if watts is not None:
                self._idle_watts[state.node] = min(watts, self._idle_watts.get(state.node, watts))

    def _note_changes(self, report: CycleReport, now: float) -> None:
        for direction, changes in (("down", report.plan.down), ("up", report.plan.up)):
            self._recent.extend(
                {
                    "time": now,
                    "node": one.name,
                    "change": direction,
                    "saving_joules": one.saving_joules,
                    "probability": one.probability,
                }
                for one in changes
            )

    def status(self) -> dict[str, Any]:
        """Return the section about power saving for the status of senergyctld."""
        report, mode = self._report, self._config().power_saving.mode
        status: dict[str, Any] = {"mode": mode, "decided": self._decided, "error": self._error or None}
        if report is None:
            return status
        return status | {
            "problems": report.problems,
            "warnings": report.warnings,
            "nodes": report.nodes,
            "kept": {reason.value: count for reason, count in report.plan.kept.items()},
            "deferred_boots": report.plan.deferred_boots,
            "boot_s": self._boots.boot_s(),
            "energy": {kind: asdict(energy) for kind, energy in report.energy.items()},
            "recent": list(self._recent),
        }


def boot_headrooms(budget: BudgetLoop) -> list[BootHeadroom]:
    """Return the power that booting nodes may add under each enforced power budget of nodes.

    Budgets of accounts, users and QOS count only the devices of jobs, so that they do not limit boots.
    """
    if budget.config.budget.mode != "enforce":
        return []
    watts = {state.name: state.headroom_watts - state.unlimited_idle_watts for state in budget.states}
    headrooms = []
    for table in budget.config.budgets:
        key, value = table.scope
        if table.name in watts and BudgetScope(ScopeKind(key)).covers_nodes:
            partition = value if key == ScopeKind.PARTITION else None
            nodes = frozenset(expand_hostlist(value)) if key == ScopeKind.NODES else None
            headrooms.append(BootHeadroom(watts[table.name], partition, nodes))
    return headrooms


def _node_watts(watts: Mapping[str, float | None]) -> float | None:
    """Return the power of a node in watts; None if unknown.

    It is the value of the node's meter or, without a meter, the sum of the known components.
    """
    if watts.get(_NODE) is not None:
        return watts[_NODE]
    known = [value for name, value in watts.items() if value is not None and name != _NODE]
    return sum(known) if known else None
