"""The queue engine at the controller: when it runs, on which queue, and where its order goes.

Ranking is in the priority room; numpy is needed from the first cycle on, not before.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.accounting import consumption, decisions, start_predictions
from slurm_energy.config import Config
from slurm_energy.controller.history_cache import Memory
from slurm_energy.controller.recurring import Recurring
from slurm_energy.controller.store import Store
from slurm_energy.errors import ConfigError, EnergyError, install_extra
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.controller.priority_pipeline import Parts
    from slurm_energy.priority.engine import Kept, Snapshot

OFF: Final = "off"
_LOOK_INTERVAL_S: Final = 1.0
_LEAST_PAUSE_S: Final = 2.0
_PAUSES: Final = 4.0  # of as many times the last cycle, so that a long queue takes a fifth of a core at most
_AGREEMENT_INTERVAL_S: Final = 600.0
_HISTORY_WAIT_S: Final = 60.0
_CLOCK_SET_S: Final = 60.0
_REMEMBERED_S: Final = 30 * 86400.0
log = logging.getLogger("senergyctld")

MakeParts = Callable[[Config, "Memory | None", "Kept | None"], "Parts"]


def make_parts(config: Config, memory: Memory | None, kept: Kept | None) -> Parts:
    """Return what the configuration asks for.

    Raises:
        ConfigError: numpy is missing, or the policy cannot be had.
    """
    try:
        from slurm_energy.controller import priority_pipeline
    except ImportError as error:
        why = f"{error.name or error} is not installed"
        raise ConfigError("priority.mode", why, f"{install_extra('scheduling')}, or mode off") from None
    return priority_pipeline.parts(config, memory, kept)


class PriorityLoop:
    """Ranks the queue again and again; answers come from the last snapshot.

    All work but the database's is done in one thread of its own, so that a long cycle holds nobody up but
    the next one.

    Args:
        config: in force at the start.
        store: the database.
        memory: history; None: predictions do without.
        recurring: for failures that repeat.
        make: makes the parts.

    Raises:
        ConfigError: the configuration cannot be followed.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        memory: Memory | None,
        recurring: Recurring,
        make: MakeParts = make_parts,
    ) -> None:
        self._store, self._memory, self._recurring, self._make = store, memory, recurring, make
        self._thread = ThreadPoolExecutor(1, "priority")
        self._parts: Parts | None = None
        self._next: tuple[Config, Parts | None] | None = None
        self._began = self._agreement_told = float("-inf")
        self._took_s = 0.0
        self._ahead_s = time.time() - time.monotonic()
        self._signature: tuple[int, ...] | None = None
        self._error: str | None = None
        self._agreement: dict[str, Any] | None = None
        self.snapshot: Snapshot | None = None
        self.config = config
        self.take(self.prepared(config))

    def prepared(self, config: Config) -> tuple[Config, Parts | None]:
        """Return what `take` needs, without changing anything.

        Raises:
            ConfigError: the configuration cannot be followed.
        """
        if config.priority.mode == OFF:
            return config, None
        latest = self._next[1] if self._next else self._parts
        return config, self._make(config, self._memory, latest.kept if latest else None)

    def take(self, prepared: tuple[Config, Parts | None]) -> None:
        """Follow another configuration from the next cycle on; no cycle is waited for."""
        self._next, self.config = prepared, prepared[0]
        self._began = float("-inf")

    @property
    def kept(self) -> Kept | None:
        """What lives from cycle to cycle; None while the engine is off."""
        return self._parts.kept if self._parts else None

    async def loop(self) -> None:
        """Look every second whether it is time, until cancelled."""
        await self._until_history_is_there()
        while True:
            if self._due():
                await self.cycle()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _until_history_is_there(self) -> None:
        """Wait at the start, but not for ever: without history all jobs would move, and soon move back."""
        latest = time.monotonic() + _HISTORY_WAIT_S
        while self._memory is not None and not self._memory.loaded and time.monotonic() < latest:
            await asyncio.sleep(_LOOK_INTERVAL_S / 10)

    async def cycle(self) -> None:
        """Rank once. Whatever fails is told once, and the last order stays."""
        self._swap()
        if self._parts is None:
            return
        self._began = time.monotonic()
        try:
            self._error = await self._rank(self._parts)
        except EnergyError as error:
            self._error = str(error)
        except (Exception, SystemExit) as error:  # whatever a site's own policy raises
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}, line {at.lineno}"
            self._error = f"{place}: {type(error).__name__}: {shown(str(error), 120)}"
        if self._error is None:
            self._recurring.works("priority")
        else:
            self._recurring.failed("priority", self._error)

    def state(self) -> dict[str, Any]:
        """Return what the status page shows."""
        settings, snapshot = self.config.priority, self.snapshot
        return {
            "mode": settings.mode,
            "policy": settings.policy,
            "source": self._parts.source_name if self._parts else None,
            "computed": snapshot.computed if snapshot else None,
            "cycle_s": snapshot.took_s if snapshot else None,
            "pending": snapshot.pending if snapshot else None,
            "ranked": len(snapshot.order) if snapshot else None,
            "agreement": self._agreement,
            "error": self._error,
        }

    def close(self) -> None:
        """End a running Slurm command and wait for the thread."""
        for parts in (self._parts, self._next[1] if self._next else None):
            if parts is not None:
                parts.stop()
        self._thread.shutdown()

    def _swap(self) -> None:
        if self._next is None:
            return
        if self._parts is not None:
            self._parts.leave(self._next[1])
        (_, self._parts), self._next = self._next, None
        self._signature = self._error = self._agreement = None
        if self._parts is None:
            self.snapshot = None
            return
        settings = self.config.priority
        if settings.mode == "plugin":  # its numbers are not those that were set job by job before
            self._parts.kept.taken.clear()
        log.info("priority: %s, by %s from %s", settings.mode, settings.policy, self._parts.source_name)

    def _due(self) -> bool:
        passed_s = time.monotonic() - self._began
        if self._next is not None or passed_s >= self.config.priority.interval_s:
            return True
        if self._parts is None or passed_s < max(_LEAST_PAUSE_S, (1.0 + _PAUSES) * self._took_s):
            return False
        return self._parts.signature() != self._signature

    async def _rank(self, parts: Parts) -> str | None:
        now = time.time()
        await self._load_predictions(parts)
        self._mind_the_clock(parts.kept)
        usage, run = parts.kept.usage, asyncio.get_running_loop().run_in_executor
        while True:
            records = await self._store.read(
                consumption.read_consumption, usage.last_row, now - usage.since_s
            )
            await run(self._thread, usage.take, records, now)
            if len(records) < consumption.CHUNK:
                break
        if again := usage.unsettled():
            usage.take(await self._store.read(consumption.reread_consumption, again), now)
        # Before the queue is read: what is written from here on is a reason to rank again.
        self._signature = parts.signature()
        self.snapshot = await run(self._thread, parts.rank)
        await self._save_predictions(parts)
        self._took_s = time.monotonic() - self._began
        if parts.share_error is None:
            self._recurring.works("priority, shares")
        else:
            self._recurring.failed("priority, shares", parts.share_error)
        if self.config.priority.mode == "shadow":
            await self._compare(self.snapshot)
        problem = await run(self._thread, parts.hand_over, self.snapshot)
        await self._intervene(parts, self.snapshot)
        return problem

    def _mind_the_clock(self, kept: Kept) -> None:
        """Have usage read again where the clock was set: it has faded by time that never passed."""
        ahead_s = time.time() - time.monotonic()
        if abs(ahead_s - self._ahead_s) > _CLOCK_SET_S:
            log.info(
                "priority: the clock was set by %.0f s; used energy is added up anew", ahead_s - self._ahead_s
            )
            kept.usage = kept.usage.anew()
        self._ahead_s = ahead_s

    async def _load_predictions(self, parts: Parts) -> None:
        """Read once what was predicted of jobs that were running when senergyctld started."""
        kept = parts.kept.mispredictions
        if not kept.loaded:
            before, cluster = time.time() - _REMEMBERED_S, self.config.cluster.name
            rows = await self._store.read(start_predictions.since, cluster, before)
            kept.load(rows)

    async def _save_predictions(self, parts: Parts) -> None:
        """Store what was predicted of the jobs that have started, for the time when they have ended."""
        kept = parts.kept.mispredictions
        if started := list(kept.unsaved):
            await self._store.write(start_predictions.save, self.config.cluster.name, started)
            del kept.unsaved[: len(started)]

    async def _intervene(self, parts: Parts, snapshot: Snapshot) -> None:
        """Change shapes and make way; what was done is kept in the database."""
        acted, cluster = parts.kept.acted, self.config.cluster.name
        if not acted.loaded:
            before = time.time() - _REMEMBERED_S
            acted.load(await self._store.read(decisions.since, cluster, before))
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, parts.intervene, snapshot)
        finally:
            if made := list(acted.unsaved):
                await self._store.write(decisions.save, cluster, made)
                del acted.unsaved[: len(made)]

    async def _compare(self, snapshot: Snapshot) -> None:
        """Compare with Slurm's own order, and say so in the log now and then."""
        found = await asyncio.get_running_loop().run_in_executor(self._thread, snapshot.against_slurm)
        tau = found.kendall_tau if found.jobs > 1 else None
        self._agreement = {"jobs": found.jobs, "kendall_tau": tau, "moved": found.moved}
        if found.jobs > 1 and time.monotonic() - self._agreement_told >= _AGREEMENT_INTERVAL_S:
            self._agreement_told = time.monotonic()
            log.info(
                "priority, shadow: of %d jobs free to start %s would move %d; "
                "Kendall's tau against Slurm's order %.2f",
                found.jobs,
                snapshot.policy,
                found.moved,
                tau,
            )
