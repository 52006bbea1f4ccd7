"""Tests of power saving in senergyctld.

The tests check the parsing of Slurm's output, protected nodes, limits, and the commands that are sent to
Slurm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from fake_controller import timezone
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config.loader import parse
from slurm_energy.config.power_saving_section import PowerSavingConfig
from slurm_energy.controller.power_saving.engine import CycleReport, PowerSavingEngine
from slurm_energy.controller.power_saving.loop import boot_headrooms
from slurm_energy.errors import UnavailableError
from slurm_energy.power_saving.boot_headroom import BootHeadroom
from slurm_energy.slurm.node_power_states import parse_power_states
from slurm_energy.slurm.power_saving_settings import parse_power_saving_settings
from slurm_energy.slurm.queue.node_demand import count_tasks, read_node_demand

NOW = 1_800_000_000.0
CONFIG = """\
ResumeProgram           = /sbin/resume
ResumeTimeout           = 300 sec
SuspendExcNodes         = {nodes}
SuspendExcParts         = {parts}
SuspendProgram          = /sbin/suspend
SuspendTime             = {time}
"""
LINE = (
    "NodeName={name} Arch=x86_64 CPUTot=64 ActiveFeatures=(null) Gres=(null) State={state} Weight=1 "
    "Partitions={partitions} BootTime=1799900000 SlurmdStartTime=1799900000 LastBusyTime={busy}"
)
SETTINGS = PowerSavingConfig(mode="on", idle_watts={"n[1-9]": 150.0}, reserve_percent=0.0)


class FakeSlurm:
    """Fake of Slurm's commands. It answers them and records the commands that change nodes."""

    def __init__(self, states: dict[str, str], **more: str) -> None:
        self.states = states
        self.partitions = more.pop("partitions", "batch")
        self.jobs: list[list[str]] = []
        self.settings = {"nodes": "(null)", "parts": "(null)", "time": "31536000 sec"} | more
        self.changes: list[tuple[str, str]] = []
        self.calls: list[str] = []

    def __call__(self, argv: list[str]) -> str:
        self.calls.append(" ".join(argv))
        if "update" in argv:
            self.changes.append((argv[2], argv[3]))
            return ""
        if argv[0] == "squeue":
            delimiter = argv.environment["SQUEUE_FORMAT2"].split(",")[0].split(":", 1)[1]  # type: ignore[attr-defined]
            return "".join("".join(field + delimiter for field in row) + "\n" for row in self.jobs)
        if "config" in argv:
            return CONFIG.format(**self.settings)
        if "reservations" in argv:
            return "No reservations in the system\n"
        return "\n".join(
            LINE.format(name=name, state=state, partitions=self.partitions, busy=int(NOW - 9e4))
            for name, state in self.states.items()
        )


def decide(
    slurm: FakeSlurm, config: PowerSavingConfig = SETTINGS, headrooms: Sequence[BootHeadroom] = ()
) -> CycleReport:
    return PowerSavingEngine(slurm, lambda: NOW).cycle(config, {}, headrooms)


def headrooms_of(**watts: float) -> list[BootHeadroom]:
    """Return the power that boots may add under the budgets of a site.

    `watts` contains the power that is left under a budget, by its name. The other budgets have 900 kW left.
    Idle nodes without a limit may draw another 50 W at any time, which boots may not use.
    """
    config = parse(
        '[budget]\nmode = "enforce"\n'
        '[[budgets]]\nname = "site"\ncluster = true\nwatts = 9e5\n'
        '[[budgets]]\nname = "row"\nnodes = "n[1-2]"\nwatts = 9e5\n'
        '[[budgets]]\nname = "debug"\npartition = "debug"\nwatts = 9e5\n'
        '[[budgets]]\nname = "alice"\nuser = "alice"\nwatts = 9e5\n'
    )
    left = {one.name: watts.get(one.name, 9e5) for one in config.budgets}
    states = [
        SimpleNamespace(name=name, headroom_watts=more + 50.0, unlimited_idle_watts=50.0)
        for name, more in left.items()
    ]
    return boot_headrooms(SimpleNamespace(config=config, states=states))  # type: ignore[arg-type]


def test_idle_nodes_go_down_with_one_command() -> None:
    slurm = FakeSlurm({"n1": "IDLE", "n2": "IDLE", "n3": "MIXED", "n4": "IDLE+POWERED_DOWN"})
    report = decide(slurm)
    assert slurm.changes == [("NodeName=n[1-2]", "State=POWER_DOWN")]
    assert report.nodes["off"] == 1
    assert sum("show node" in call for call in slurm.calls) == 1


@pytest.mark.parametrize(
    "state",
    [
        *("IDLE+DRAIN", "IDLE+RESERVED", "IDLE+MAINTENANCE", "IDLE+PLANNED", "DOWN", "DOWN+POWERED_DOWN"),
        *("IDLE+POWERING_DOWN", "IDLE+REBOOT_REQUESTED", "FUTURE", "ALLOCATED", "MIXED", "COMPLETING"),
        *("UNKNOWN", "IDLE*"),
    ],
)
def test_node_in_such_a_state_is_not_changed(state: str) -> None:
    slurm = FakeSlurm({"n1": state})
    slurm.jobs = [["PENDING", "batch", "1", "", "60", "N/A", "0", "Resources", "N/A", "7", "N/A"]]
    decide(slurm)
    assert slurm.changes == []
    slurm.jobs = []
    decide(slurm)
    assert slurm.changes == []


def test_exclusions_of_slurm_and_of_our_configuration_hold() -> None:
    idle = {"n1": "IDLE", "n2": "IDLE", "n3": "IDLE"}
    slurm = FakeSlurm(idle, nodes="n[1-2]:1")
    decide(slurm, dataclasses.replace(SETTINGS, exclude_nodes="n3"))
    assert slurm.changes == []
    for config, more in (
        (SETTINGS, {"parts": "batch"}),
        (dataclasses.replace(SETTINGS, exclude_partitions=["batch"]), {}),
    ):
        # A node in two partitions is excluded if one of them is.
        slurm = FakeSlurm(idle, partitions="debug,batch", **more)
        decide(slurm, config)
        assert slurm.changes == []


def test_reserve_and_limit_per_cycle_hold() -> None:
    idle = {f"n{number}": "IDLE" for number in range(1, 9)}
    slurm = FakeSlurm(idle)
    report = decide(slurm, dataclasses.replace(SETTINGS, max_down=3, reserve_percent=25.0))
    assert len(report.plan.down) == 3
    slurm = FakeSlurm(idle)
    report = decide(slurm, dataclasses.replace(SETTINGS, reserve_nodes={"batch": 6.0}))
    assert len(report.plan.down) == 2


def test_reserve_is_booted_if_the_budget_has_room() -> None:
    off = {f"n{number}": "IDLE+POWERED_DOWN" for number in range(1, 5)}
    config = dataclasses.replace(SETTINGS, reserve_nodes={"batch": 3.0})
    slurm = FakeSlurm(off)
    decide(slurm, config)
    assert slurm.changes == [("NodeName=n[1-3]", "State=POWER_UP")]
    slurm = FakeSlurm(off)
    report = decide(slurm, config, headrooms_of(site=250.0))
    assert slurm.changes == [("NodeName=n1", "State=POWER_UP")]
    assert report.plan.deferred_boots == 2


@pytest.mark.parametrize(
    ("full", "booted"),
    [("alice", "n[1-3]"), ("debug", "n[1-3]"), ("row", "n3"), ("site", ""), ("none", "n[1-3]")],
)
def test_a_full_budget_stops_only_boots_of_the_nodes_that_it_limits(full: str, booted: str) -> None:
    slurm = FakeSlurm({f"n{number}": "IDLE+POWERED_DOWN" for number in range(1, 4)})
    decide(slurm, dataclasses.replace(SETTINGS, reserve_nodes={"batch": 3.0}), headrooms_of(**{full: 0.0}))
    assert slurm.changes == ([(f"NodeName={booted}", "State=POWER_UP")] if booted else [])


@pytest.mark.parametrize(("mode", "time"), [("observe", "31536000 sec"), ("on", "NONE"), ("on", "-1 sec")])
def test_nothing_is_changed_in_mode_observe_or_if_slurm_would_refuse(mode: str, time: str) -> None:
    slurm = FakeSlurm({"n1": "IDLE"}, time=time)
    report = decide(slurm, dataclasses.replace(SETTINGS, mode=mode))
    assert len(report.plan.down) == 1
    assert slurm.changes == []
    assert bool(report.problems) == (mode == "on")


def test_pending_jobs_keep_nodes_on() -> None:
    slurm = FakeSlurm({"n1": "IDLE", "n2": "IDLE", "n3": "IDLE"})
    slurm.jobs = [
        ["PENDING", "batch", "2", "", "1:00:00", "N/A", str(int(NOW)), "Resources", "N/A", "7", "N/A"],
        ["PENDING", "batch", "1", "", "1:00:00", "N/A", "N/A", "JobHeldUser", "N/A", "8", "N/A"],
    ]
    report = decide(slurm)
    assert len(report.plan.down) == 1


def test_node_without_known_idle_power_stays_on() -> None:
    slurm = FakeSlurm({"n1": "IDLE"})
    decide(slurm, dataclasses.replace(SETTINGS, idle_watts={}))
    assert slurm.changes == []


def test_failure_of_slurm_changes_nothing() -> None:
    def fail(argv: list[str]) -> str:
        raise UnavailableError(argv[0], "no answer")

    with pytest.raises(UnavailableError):
        PowerSavingEngine(fail, lambda: NOW).cycle(SETTINGS, {})


def test_second_line_in_free_text_makes_a_node_ambiguous() -> None:
    text = (
        LINE.format(name="n1", state="IDLE+DRAIN", partitions="a", busy=1)
        + " Reason=x\n"
        + LINE.format(name="n1", state="IDLE", partitions="a", busy=1)
    )
    (node,) = parse_power_states(text)
    assert node.hindrance == "ambiguous"


@given(st.text())
def test_parsers_accept_any_text(text: str) -> None:
    parse_power_states(text)
    parse_power_states(f"NodeName=n1 State={text}")
    parse_power_saving_settings(text)
    assert 1 <= count_tasks(text) <= 10_000


def test_boot_time_is_learned_from_boots_that_were_requested() -> None:
    slurm = FakeSlurm({"n1": "IDLE+POWERED_DOWN"})
    # SlurmdStartTime is 1799900000; the boot was requested 40 s before.
    times = iter([1_799_900_000.0 - 40.0, 1_799_900_010.0])
    engine = PowerSavingEngine(slurm, lambda: next(times))
    config = dataclasses.replace(SETTINGS, reserve_nodes={"batch": 1.0})
    engine.cycle(config, {})
    slurm.states["n1"] = "IDLE"
    engine.cycle(config, {})
    assert engine.boots.boot_s() == 40.0


def test_the_forecast_keeps_local_time_when_summer_time_begins() -> None:
    zone = ZoneInfo("Europe/Berlin")
    names = [f"n{number}" for number in range(1, 10)]
    days = [datetime(2026, 2, 1, 8, 20, tzinfo=zone) + timedelta(days=day) for day in range(57)]
    mornings = [day.timestamp() for day in days if day.weekday() < 5]
    arrivals = [(name, start, start + 3600.0) for start in mornings for name in names]
    off = FakeSlurm(dict.fromkeys(names, "IDLE+POWERED_DOWN"))
    settings = dataclasses.replace(SETTINGS, boot_s=1800.0)

    def nodes_up(hour: int) -> int:
        now = datetime(2026, 3, 30, hour, 52, tzinfo=zone).timestamp()  # Monday, summer time since Sunday
        engine = PowerSavingEngine(off, lambda: now)
        engine.learn(arrivals, days[0].timestamp() - 8 * 3600.0, now)
        return len(engine.cycle(settings, {}).plan.up)

    with timezone("Europe/Berlin"):
        assert (nodes_up(7), nodes_up(9)) == (9, 0)


@pytest.mark.parametrize(("text", "tasks"), [("N/A", 1), ("1-10", 10), ("1-10:2,12%4", 6), ("3", 1)])
def test_tasks_of_an_array_are_counted(text: str, tasks: int) -> None:
    assert count_tasks(text) == tasks


def test_advice_names_what_makes_jobs_wait_longer_for_a_boot() -> None:
    bare = parse_power_saving_settings(CONFIG.format(nodes="(null)", parts="(null)", time="31536000 sec"))
    assert [line.split()[0] for line in bare.advice()] == ["PrologSlurmctld", "slurmctld"]
    text = (
        "PrologSlurmctld = /usr/lib/slurm-energy/prolog_slurmctld\nPrologEpilogTimeout = 100\n"
        "ResumeTimeout = 300 sec\nSuspendTimeout = 30 sec\n"
        "SlurmctldParameters = idle_on_node_suspend,power_save_interval=1\n"
    )
    full = parse_power_saving_settings(text)
    assert full.advice() == []
    since_24_05 = text.replace("PrologSlurmctld", "PrologSlurmctld[0]")
    assert parse_power_saving_settings(since_24_05) == full
    assert parse_power_saving_settings("SlurmUser = slurm(64030)\n").slurm_uid == 64030
    assert full.slurm_uid is None


@pytest.mark.parametrize(
    ("lines", "wait_s"),
    [
        ("PrologEpilogTimeout     = 100", 80.0),
        ("PrologEpilogTimeout     = 65534", 330.0),
        ("PrologEpilogTimeout     = 0", 330.0),  # no limit for PrologSlurmctld (run_command)
        ("EpilogTimeout           = 65534\nPrologTimeout           = 100", 80.0),  # from Slurm 25.05 on
        ("EpilogTimeout           = 100\nPrologTimeout           = 65534", 330.0),
    ],
)
def test_jobs_wait_for_boots_for_less_time_than_slurmctld_grants_its_prolog(
    lines: str, wait_s: float
) -> None:
    """slurmctld requeues a job whose PrologSlurmctld exceeds its time limit."""
    text = f"{lines}\nResumeTimeout           = 300 sec\nSuspendTimeout          = 30 sec\n"
    assert parse_power_saving_settings(text).boot_wait_s == wait_s


def test_running_jobs_end_at_their_expected_end_and_not_later_than_their_limit() -> None:
    slurm = FakeSlurm({})
    end, start = str(int(NOW + 3600)), str(int(NOW - 600))
    running = ["RUNNING", "batch", "1", "n1", "70:00", end, start, "None", "N/A"]
    slurm.jobs = [[*running, "7", start], [*running, "8", start]]
    slurm.jobs[1][3] = "n2"
    slurm.jobs += [["PENDING", "batch", "2", "", "60:00", "N/A", "0", "Resources", "N/A", "9", "N/A"]]

    def ends(**times_s: float) -> dict[str, float]:
        times = {int(name[1:]): time_s for name, time_s in times_s.items()}
        demand = read_node_demand(slurm, times, NOW)
        assert demand.pending[0].time_s == min(3600.0, times.get(9, 3600.0))
        return {name: until - NOW for name, until in demand.busy_until_unix_s.items()}

    assert ends() == {"n1": 3600.0, "n2": 3600.0}
    assert ends(j7=900.0, j8=9e9, j9=120.0) == {"n1": 300.0, "n2": 3600.0}
    # A job that has exceeded its expected run time may end soon, but not now.
    assert ends(j7=100.0, j9=1e9) == {"n1": 60.0, "n2": 3600.0}
