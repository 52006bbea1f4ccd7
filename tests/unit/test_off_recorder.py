"""Tests of the recorder of nodes that are powered off.

The recorder records for how long a node was off and how much energy it used in this time. The energy
reports include this energy.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from slurm_energy import config as configuration
from slurm_energy.accounting.records.off_periods import OffPeriod, store_off_periods
from slurm_energy.accounting.schema.tables import node_periods
from slurm_energy.controller.budgets.loop import BudgetLoop
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.controller.power_saving import loop as power_saving
from slurm_energy.controller.power_saving.loop import PowerSavingLoop
from slurm_energy.controller.power_saving.off_recorder import PERIOD_S, OffRecorder
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.command import Command, CommandRunner
from slurm_energy.slurm.node_power_states import NodePowerStatus


def test_period_has_the_mean_of_the_readings() -> None:
    recorder = OffRecorder()
    for second in range(10):
        assert recorder.update({"n1": 8.0 + second % 2, "n2": None}, 1000.25 + second) == []
    assert recorder.update({}, 1010.75) == [
        OffPeriod("n1", 1001, 1010, 76_500_000),
        OffPeriod("n2", 1001, 1010, None),
    ]
    assert recorder.update({}, 1100.0) == []


def test_long_periods_are_stored_in_pieces_without_gap() -> None:
    recorder, pieces = OffRecorder(), []
    for tick in range(4 * int(PERIOD_S)):
        pieces += recorder.update({"n1": 10.0}, 5000.5 + tick)
    assert len(pieces) >= 3
    assert all(first.end == second.start for first, second in itertools.pairwise(pieces))
    assert all(piece.energy_uj == 10_000_000 * (piece.end - piece.start) for piece in pieces)


def test_energy_is_unknown_with_few_readings_and_after_a_step_of_the_clock() -> None:
    recorder = OffRecorder()
    recorder.update({"n1": None}, 1000.0)
    recorder.update({"n1": 9.0}, 1090.0)
    assert recorder.update({}, 1100.0) == [OffPeriod("n1", 1000, 1100, None)]
    recorder.update({"n1": 9.0}, 2000.0)
    assert recorder.update({"n1": 9.0}, 1500.0) == []
    assert recorder.update({}, 1600.0) == [OffPeriod("n1", 1500, 1600, 900_000_000)]


def off_periods(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failures: int, writes: int
) -> list[tuple[int, int]]:
    """Run power saving for a node that is off. Return begin and end of the stored periods.

    Args:
        folder: folder of the database.
        monkeypatch: replaces the statement that stores periods.
        failures: number of the first writes that fail.
        writes: number of writes after which power saving ends.
    """
    text = f"""
        [cluster]
        name = "c1"
        [controller]
        state_dir = "{folder}"
        [power_saving]
        mode = "observe"
        boot_socket = "{folder}/boot.sock"
        power_program_interval_s = 1
        """
    config, ticks, attempts = configuration.parse(text), itertools.count(), list[int]()

    def no_slurm(argv: Any) -> str:
        raise UnavailableError("scontrol", "not installed")

    async def story() -> list[tuple[int, int]]:
        store, log = Store(folder / "senergy.db"), RepeatedFailureLog(logging.getLogger("test"))
        budget = BudgetLoop(config, store, None, RunningJobCache(no_slurm), log)
        live = LiveReports(lambda: config)
        loop = PowerSavingLoop(
            *(lambda: config, store, live, budget, log, no_slurm), lambda: 1000.0 * next(ticks)
        )
        loop._boots.observe([NodePowerStatus("n1", frozenset({"IDLE", "POWERED_DOWN"}))], 0.0)
        enough = asyncio.Event()
        running = asyncio.get_running_loop()

        def write(*args: Any) -> None:
            attempts.append(1)
            if len(attempts) <= failures:
                raise OperationalError("", {}, Exception("the server does not answer"))
            store_off_periods(*args)
            if len(attempts) >= writes:
                running.call_soon_threadsafe(enough.set)

        monkeypatch.setattr(power_saving, "store_off_periods", write)
        task = asyncio.create_task(loop.loop())
        try:
            await enough.wait()
            return await store.read(
                lambda connection: [
                    (int(begin), int(end))
                    for begin, end in connection.execute(
                        select(node_periods.c.start, node_periods.c.end).order_by(node_periods.c.start)
                    )
                ]
            )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            budget.close()
            store.close()

    return asyncio.run(story())


def test_periods_are_stored_after_the_database_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Periods that end while the database does not answer are stored later, without a gap."""
    stored = off_periods(tmp_path, monkeypatch, failures=1, writes=2)
    assert len(stored) == 2
    assert all(first[1] == second[0] for first, second in itertools.pairwise(stored))


def test_the_oldest_of_too_many_periods_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_saving, "MAX_UNSTORED", 1)
    assert len(off_periods(tmp_path, monkeypatch, failures=1, writes=2)) == 1


def test_commands_work_after_an_unexpected_error_until_the_daemon_stops(tmp_path: Path) -> None:
    config = configuration.parse("")

    async def story() -> None:
        store, log = Store(tmp_path / "senergy.db"), RepeatedFailureLog(logging.getLogger("test"))
        budget = BudgetLoop(config, store, None, RunningJobCache(lambda _: ""), log)
        runner = CommandRunner(5.0)
        loop = PowerSavingLoop(lambda: config, store, LiveReports(lambda: config), budget, log, runner)
        measure, loop._measure = loop._measure, _failing  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="unexpected"):
            await loop.loop()
        assert runner(Command(["echo", "on"])) == "on\n"
        loop._measure = measure  # type: ignore[method-assign]
        task = asyncio.create_task(loop.loop())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(UnavailableError, match="shutting down"):
            runner(Command(["echo", "off"]))
        budget.close()
        store.close()

    asyncio.run(story())


async def _failing() -> None:
    raise ValueError("unexpected")
