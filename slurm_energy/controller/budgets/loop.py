"""Periodic decisions of senergyctld about power budgets.

The module also answers the nodes that ask for decisions (poll), stores the decisions, and lets
pending jobs start within the budgets. numpy is imported only if a configuration has budgets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from slurm_energy.accounting import budgets
from slurm_energy.accounting.budgets import BudgetChange, LimitOverride
from slurm_energy.budget.messages import NodeDecision, NodePoll
from slurm_energy.config import Config
from slurm_energy.controller.budgets.budget_signals import SignalReader
from slurm_energy.controller.budgets.facts import BudgetCycle, BudgetStatus
from slurm_energy.controller.budgets.recorder import BudgetRecorder
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.periodic_tasks import run_together
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.tuning.advisor import CurveOracle
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import ConfigError, EnergyError, UnavailableError, install_extra
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.licenses import BUDGET_PREFIX, LicenseReservations

if TYPE_CHECKING:
    from slurm_energy.controller.budgets.parts import BudgetParts

OFF: Final = "off"
CYCLE_S: Final = 1.0
_MIN_PAUSE_S: Final = 0.25
_PAUSE_FACTOR: Final = 2.0
"""Pause after an early decision, as a multiple of the duration of the decision."""
_STORE_S: Final = 10.0
_NODES_S: Final = 5.0
_MAX_AGE_S: Final = 15.0
_INPUTS_TIMEOUT_S: Final = 10.0
_OFF_POLL_S: Final = 30.0
_RELEASE_RETRY_S: Final = 60.0
_SUBJECT: Final = "power budgets"
_POLICY_FILE: Final = f"{_SUBJECT}, policy file"
T = TypeVar("T")
log = logging.getLogger(__name__)


class BudgetLoop:
    """Loop that decides about the power budgets of the cluster and answers the requests of nodes.

    Each node requests the latest decision regularly (poll). The engine runs in one thread. While a
    decision is made and stored, polls wait.

    Args:
        config: configuration at the start.
        store: the database.
        history: history of measured runs, for the admission of jobs.
        running: cache of the running jobs in Slurm.
        failures: log of failures; a repeated failure is logged once.
        oracle: returns a predictor, or None if there is no predictor. The predictor is a function that
            takes a training model and a kind of hardware and returns the response curve.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay
            jobs; None means that no other part delays jobs.
        on_policy_lines: called when `policy_lines` has changed.

    Raises:
        ConfigError: the configuration cannot be used.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        history: HistoryCache | None,
        running: RunningJobCache,
        failures: RepeatedFailureLog,
        oracle: Callable[[], CurveOracle | None] = lambda: None,
        on_policy_lines: Callable[[], None] = lambda: None,
        begin_times: BeginTimes | None = None,
    ) -> None:
        self._store, self._history, self._running, self._failures = store, history, running, failures
        self._oracle, self._on_policy_lines = oracle, on_policy_lines
        self._begin_times = begin_times
        self._unexpected = UnexpectedErrorLog(log)
        self._thread = ThreadPoolExecutor(1, "budget")
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._commands, self._release = CommandRunner(), CommandRunner()
        self._release_at_s = 0.0  # time of the next removal of reservations that belong to no budget
        self.recorder = BudgetRecorder()
        self.signals = SignalReader(failures, self._wake.set)
        self._backlog: dict[str, str] = {}
        self.policy_lines: tuple[str, ...] = ()
        self._cycle_s, self._decided_s = 0.0, time.monotonic()
        self._error: str | None = None
        self._overrides_due = True
        self._loading_overrides = asyncio.Lock()
        self.decided_unix_s: float | None = None
        self.cycle: BudgetCycle | None = None
        self.parts: BudgetParts | None = None
        self.config = config
        self.adopt(self.prepare(config))

    def prepare(self, config: Config) -> tuple[Config, BudgetParts | None]:
        """Prepare a new configuration of the power budgets without putting it into force.

        Return the argument of the method `adopt`: the configuration and its `BudgetParts`. If the budgets
        are off, the parts are None.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        if config.budget.mode == OFF or not config.budgets:
            return config, None
        try:
            from slurm_energy.controller.budgets.parts import BudgetParts
        except ImportError as error:
            why = f"{error.name or error} is not installed"
            raise ConfigError("budget.mode", why, f"{install_extra('scheduling')}, or mode off") from None
        history, failures, running = self._history, self._failures, self._running
        shared = (self._store, running, self._commands, failures, self._oracle)
        return config, BudgetParts.create(config, self.parts, history, shared, self._begin_times)

    def adopt(self, prepared: tuple[Config, BudgetParts | None]) -> None:
        """Use a configuration that `prepare` has prepared, from the next decision on."""
        before, (self.config, parts) = self.parts, prepared
        if before is not None and (parts is None or parts.admission is not before.admission):
            before.admission.close()
        if parts is None:
            self.cycle, self.decided_unix_s = None, None
        if parts is not None and before is not None:
            parts.configure(self.config)
            count, mode = len(self.config.budgets), self.config.budget.mode
            why = f"configuration read again: {count} budgets, mode {mode}"
            self.recorder.note(BudgetChange(time.time(), None, None, "reload", why))
            self._overrides_due = True  # a restored budget may have an earlier live limit
        if before is None:
            self._decided_s = time.monotonic()  # the first decision may take its time
        self.parts = parts
        self.signals.follow(parts.limits.signals if parts is not None else {})
        self._wake.set()

    async def poll(self, data: Any) -> dict[str, Any]:
        """Return the decision about the power limits of a node.

        The caller has checked that the agent runs on the node.

        Args:
            data: the request (poll) of the node's agent as parsed JSON.

        Raises:
            UnavailableError: decisions have failed for some time. The node then gets no new lease (the time
                for which limits are valid). When its old lease ends, the node sets safe limits.
            UsageError: the poll is malformed.
        """
        poll = NodePoll.from_json(data)
        parts = self.parts
        if parts is None:
            return NodeDecision(0, {}, {}, {}, self.config.budget.lease_s, _OFF_POLL_S).to_json()
        self._refuse_old_decisions()
        async with self._lock:
            decision = await self._in_thread(lambda: parts.engine.poll(poll, time.monotonic()))
        if parts.engine.has_news:
            self._wake.set()
        return decision.to_json()

    def _refuse_old_decisions(self) -> None:
        age_s = time.monotonic() - self._decided_s
        if age_s > max(_MAX_AGE_S, 3.0 * self.config.budget.period_s):
            raise UnavailableError("power budgets", f"no decision for {age_s:.0f} s", "see senergyctld's log")

    async def loop(self) -> None:
        """Run the concurrent loops of the power budgets until cancelled.

        The loops decide about budgets, read inputs and signals, admit jobs and store the state.
        """
        await run_together(
            self._decide_loop(),
            self._inputs_loop(),
            self._admission_loop(),
            self._store_loop(),
            self.signals.loop(),
        )

    async def decide(self) -> None:
        """Make one decision about the power budgets, and store it for a restart of the controller.

        Raises:
            UnavailableError: the state could not be stored, or a change of live limits could not be read. The
                decision then raises no power limit.
        """
        parts = self.parts
        if parts is None:
            return
        if not parts.is_restored:
            await self._restore(parts)
        unread = await self._load_due_overrides()
        began_s = time.monotonic()
        async with self._lock:
            cycle = await self._in_thread(lambda: parts.decide(time.time(), began_s, self.signals.texts))
            if unread is not None:
                await self._in_thread(parts.engine.withdraw_raises)
            problem = await self._save_nodes(parts) or unread
        self._cycle_s = time.monotonic() - began_s
        if parts is self.parts:
            self._use(parts, cycle, began_s)
        if problem is not None:
            raise problem

    def _use(self, parts: BudgetParts, cycle: BudgetCycle, now_s: float) -> None:
        self.cycle, self._decided_s, self.decided_unix_s = cycle, now_s, time.time()
        self.recorder.add(cycle, now_s, self.decided_unix_s)
        problems = {name: parts.limits.problem(name, self.decided_unix_s) for name in parts.limits.names}
        self.recorder.add_problems(problems, self.decided_unix_s)

    async def set_override(self, override: LimitOverride | None, change: BudgetChange) -> None:
        """Store a live limit (a limit that replaces the configured one) and use it in the next decision.

        Args:
            override: the live limit. None means to remove it, so that the configured limit of
                `change.budget` applies again.
            change: entry of the audit trail.

        If the database cannot be read after the change, the decisions try to read the change until they
        succeed.

        Raises:
            UnavailableError: the database refused; nothing is changed.
        """
        cluster = self.config.cluster.name
        try:
            if override is not None:
                await self._store.write(budgets.set_override, cluster, override, change)
            else:
                await self._store.write(budgets.clear_override, cluster, change.budget or "", change)
        finally:
            self._overrides_due = True  # even after an error: a server may have committed before it was lost
        await self._load_due_overrides()
        self._wake.set()

    async def report(self, function: Callable[[BudgetCycle], T]) -> T | None:
        """Evaluate a function on the result of the last budget cycle, and return the function's result.

        The function runs in the thread of the budget engine. The result is None before the first cycle.
        """
        cycle = self.cycle
        return None if cycle is None else await self._in_thread(lambda: function(cycle))

    @property
    def states(self) -> Sequence[BudgetStatus]:
        """State of each power budget after the last decision; empty before the first decision."""
        return self.cycle.budgets if self.cycle is not None else ()

    def status(self) -> dict[str, Any]:
        """Return the entries about budgets on the status page."""
        cycle, states = self.cycle, self.states
        return {
            "mode": self.config.budget.mode if self.config.budgets else OFF,
            "decided": self.decided_unix_s,
            "cycle_s": self._cycle_s if cycle is not None else None,
            "budgets": len(self.config.budgets),
            "over": self.recorder.over if cycle is not None else [],
            "silent_nodes": max((s.silent_nodes for s in states), default=0),
            "distrusted_nodes": max((s.distrusted_nodes for s in states), default=0),
            "problems": list(self.parts.admission_report.problems) if self.parts is not None else [],
            "error": self._error,
        }

    def close(self) -> None:
        """Stop Slurm's commands and wait for the engine's thread to end."""
        self._commands.stop()
        self._release.stop()
        self.signals.close()
        if self.parts is not None:
            self.parts.admission.close()
        self._thread.shutdown()

    async def _decide_loop(self) -> None:
        while True:
            began_s = time.monotonic()
            self._wake.clear()
            await self._guarded("decision", self.decide())
            pause_s = max(_MIN_PAUSE_S, _PAUSE_FACTOR * self._cycle_s)
            await asyncio.sleep(min(pause_s, CYCLE_S) if self._cycle_s < CYCLE_S else pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, CYCLE_S - (time.monotonic() - began_s))):
                    await self._wake.wait()

    async def _inputs_loop(self) -> None:
        while True:
            if self.parts is not None:
                await self._guarded("inputs", self._refresh_inputs(self.parts))
            await asyncio.sleep(CYCLE_S)

    async def _refresh_inputs(self, parts: BudgetParts) -> None:
        engine = parts.engine
        async with self._lock:
            kinds, unknown = await self._in_thread(lambda: (engine.device_kinds, engine.unknown_jobs))
        await parts.inputs.refresh(self.config, parts.limits, kinds, unknown)
        await self._use_inputs(parts)

    async def _use_inputs(self, parts: BudgetParts) -> None:
        async with self._lock:
            gone = await self._in_thread(parts.use_inputs)
            if gone:
                self._backlog = {name: body for name, body in self._backlog.items() if name not in gone}
                await self._store.write(budgets.forget_nodes, self.config.cluster.name, gone)

    async def _admission_loop(self) -> None:
        while True:
            parts = self.parts
            if parts is not None and self.cycle is not None:
                self._release_at_s = 0.0
                await self._guarded("admission", self._admit(parts, self.cycle))
            elif parts is None and time.monotonic() >= self._release_at_s:
                await self._release_power()
            await asyncio.sleep(self.config.budget.period_s if parts is not None else CYCLE_S)

    async def _release_power(self) -> None:
        """Remove the license reservations and policy-file lines of an earlier power-budget configuration.

        If Slurm does not answer, or if the policy file cannot be written, the removal is repeated later.
        """
        self._release_at_s = time.monotonic() + _RELEASE_RETRY_S
        try:
            self._publish(())
        except EnergyError as error:
            self._failures.report(_POLICY_FILE, str(error))
        else:
            self._failures.clear(_POLICY_FILE)
        try:
            reservations = LicenseReservations(BUDGET_PREFIX, self._release)
            await asyncio.to_thread(reservations.apply, {}, time.time())
        except EnergyError:
            return  # is there no Slurm on this host?
        if not self.policy_lines:
            self._release_at_s = math.inf

    def _publish(self, lines: tuple[str, ...]) -> None:
        """Write the policy file if its lines about budgets change.

        After an error, `policy_lines` has the former lines again, so that the next call writes the file.
        """
        if lines == self.policy_lines:
            return
        former, self.policy_lines = self.policy_lines, lines
        try:
            self._on_policy_lines()
        except BaseException:
            self.policy_lines = former
            raise

    async def _admit(self, parts: BudgetParts, cycle: BudgetCycle) -> None:
        if not parts.are_decided(cycle):
            return  # jobs would start without regard to the new budgets
        async with self._lock:
            request = await self._in_thread(lambda: parts.admission_request(cycle, time.time()))
        await asyncio.to_thread(parts.admit, request)
        async with self._lock:
            await self._in_thread(lambda: parts.end_admission(request))
        self._publish(tuple(parts.admission.policy_lines()))

    async def _store_loop(self) -> None:
        while True:
            await asyncio.sleep(_NODES_S)
            await self._guarded("storage", self._flush())

    async def _flush(self) -> None:
        nodes = await self.report(lambda cycle: cycle.nodes)
        if nodes is not None:
            self.recorder.add_nodes(nodes, time.time())
        samples, changes = self.recorder.take()
        cluster = self.config.cluster.name
        try:
            if samples:
                await self._store.write(budgets.save_samples, cluster, samples)
                samples = []
            if changes:
                await self._store.write(budgets.save_changes, cluster, changes)
        except EnergyError:
            self.recorder.put_back(samples, changes)
            raise

    async def _restore(self, parts: BudgetParts) -> None:
        """Continue after a restart of senergyctld with the stored state of the nodes.

        The method also loads the live limits, which are budget limits that operators have set.
        """
        cluster = self.config.cluster.name
        bodies = await self._store.read(budgets.nodes, cluster)
        await self._load_overrides()  # before the engine continues: no decision is made without live limits
        damaged = await self._in_thread(lambda: parts.restore(bodies, time.monotonic()))
        if damaged:
            log.warning("power budgets: the stored state of %d nodes cannot be read", len(damaged))
        # Until Slurm answers, nodes that have never reported do not count.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_INPUTS_TIMEOUT_S):
                await parts.inputs.refresh(self.config, parts.limits, {}, frozenset())
        await self._use_inputs(parts)
        why = f"{len(self.config.budgets)} budgets, {len(bodies)} nodes known from before"
        self.recorder.note(BudgetChange(time.time(), None, None, "start", why))

    async def _load_due_overrides(self) -> UnavailableError | None:
        """Load the live limits if they may have changed. Return the error if they cannot be read."""
        if self._overrides_due:
            try:
                await self._load_overrides()
            except UnavailableError as error:
                return error
        return None

    async def _load_overrides(self) -> None:
        async with self._loading_overrides:  # an earlier, slower read must not replace a later one
            self._overrides_due = False
            try:
                found = await self._store.read(budgets.overrides, self.config.cluster.name, time.time())
            except BaseException:
                self._overrides_due = True
                raise
            if self.parts is not None:
                self.parts.limits.set_overrides(found)

    async def _save_nodes(self, parts: BudgetParts) -> UnavailableError | None:
        """Store the power limits that the nodes may receive after the last decision.

        If the storage fails, the raised limits are withdrawn and the error is returned. A raised limit must
        never be sent before it is stored.
        """
        states = await self._in_thread(parts.engine.unsaved)
        self._backlog |= {name: json.dumps(state) for name, state in states.items()}
        if self._backlog:
            try:
                cluster = self.config.cluster.name
                await self._store.write(budgets.save_nodes, cluster, time.time(), self._backlog)
            except UnavailableError as error:
                await self._in_thread(parts.engine.withdraw_raises)
                return error
        self._backlog = {}
        return None

    async def _guarded(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Await a part of the work on power budgets, and catch and log an error.

        A repeated error is logged once. An error has limited consequences: a node that gets no new decision
        until its lease (time limit) ends uses its safe power limits.

        Args:
            what: name of the part of the work, for the log.
            work: the work.
        """
        subject = f"{_SUBJECT}, {what}"
        try:
            await work
        except EnergyError as error:
            self._error = str(error)
            self._failures.report(subject, self._error)
        except Exception as error:  # a fault must not end the other tasks of the daemon
            self._error = f"{type(error).__name__} in {what}"
            self._unexpected.report(error, f"{subject} failed")
        else:
            self._failures.clear(subject)
            if what == "decision":
                self._error = None

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
