"""Tests of applying the settings of jobs to the hardware and of restoring the original values.

The tests cover the order of writes, the verification, values that other programs change, and the death of
the agent.
"""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hardware_tree import Tree

from slurm_energy import atomic_file
from slurm_energy.control.apply import apply, reconcile
from slurm_energy.control.arbitration import Arbiter, JobAllocation
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.control.restore import restore
from slurm_energy.devices.cpu import powercap
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.settings import (
    Setting,
    epp_setting,
    frequency_range_setting,
    governor_setting,
    rapl_limit_settings,
)

JOB = "7.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "state").mkdir()
    return Tree(tmp_path / "node").cpus(2).cpufreq(2, "intel_pstate", "powersave").two_packages()


@pytest.fixture
def devices(tree: Tree) -> Iterator[NodeDevices]:
    devices = discover(tree.root)
    yield devices
    devices.close()


@pytest.fixture
def journal(tmp_path: Path) -> SettingsJournal:
    return SettingsJournal.load(tmp_path / "state/journal.json")


def disk_full(*_arguments: object, **_options: object) -> None:
    raise OSError(28, "No space left on device")


def requested_settings() -> list[Setting]:
    settings = [*rapl_limit_settings("package-0", 150, 1.0), *rapl_limit_settings("package-1", 150, 1.0)]
    for name in ("policy0", "policy1"):
        settings += [frequency_range_setting(name, 800000, 2100000), epp_setting(name, "power")]
        settings.append(governor_setting(name, "performance"))
    return settings


def test_settings_are_written_verified_and_restored(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal
) -> None:
    before = tree.snapshot()
    outcomes = apply(devices, journal, JOB, requested_settings())
    assert [outcome.failed for outcome in outcomes] == [False] * 12
    assert tree.policy(0, "scaling_governor") == "performance"
    assert tree.policy(1, "scaling_max_freq") == "2100000"
    assert tree.get("sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw") == "150000000"
    assert {outcome.original for outcome in outcomes if "power_limit" in outcome.key} == {"250000000"}
    assert journal.path.exists()
    assert all(result.done for result in restore(devices, journal, JOB))
    assert tree.snapshot() == before
    assert not journal.path.exists()


def test_a_limit_without_window_and_switch_is_set_without_a_failure(
    tree: Tree, journal: SettingsJournal
) -> None:
    for file in ("constraint_0_time_window_us", "enabled"):
        (tree.root / "sys/class/powercap/intel-rapl:1" / file).unlink()
    devices = discover(tree.root)
    outcomes = apply(devices, journal, JOB, rapl_limit_settings("package-0", 150, 1.0))
    assert [(o.key, o.failed) for o in outcomes] == [("powercap.power_limit[package-0]", False)]
    assert all(result.done for result in restore(devices, journal, JOB))
    devices.close()


def test_the_default_preference_is_set_although_the_driver_shows_another_name(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers accept `default`, and then show the name of their default, for example `balance_power`."""
    file = "sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference"
    knob = devices.knobs["cpufreq.epp[policy0]"]
    written: list[str] = []
    monkeypatch.setattr(
        knob,
        "write",
        lambda value: (
            written.append(value),
            tree.put(file, "balance_power" if value == "default" else value),
        ),
    )
    (outcome,) = apply(devices, journal, JOB, [epp_setting("policy0", "default")])
    assert (outcome.failed, outcome.applied) == (False, "balance_power")
    reconcile(devices, journal, Arbiter())
    assert written == ["default"]
    assert all(result.done for result in restore(devices, journal, JOB))
    assert tree.get(file) == "balance_performance"


def test_the_journal_is_on_disk_before_the_first_write(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: events.append("fsync"))
    for knob in devices.knobs.values():
        monkeypatch.setattr(knob, "write", lambda _value: events.append("write"))
    apply(devices, journal, JOB, requested_settings())
    assert events[:3] == ["fsync", "fsync", "write"]  # the file, its directory, then the hardware
    assert len(json.loads(journal.path.read_text())["entries"]) == 12


def test_settings_are_written_in_the_order_of_their_stages(
    devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    for key, knob in devices.knobs.items():
        monkeypatch.setattr(
            knob, "write", lambda value, key=key, write=knob.write: (written.append(key), write(value))
        )
    apply(devices, journal, JOB, requested_settings())
    kinds = list(dict.fromkeys(key.partition("[")[0] for key in written))
    expected = ["cpufreq.governor", "cpufreq.epp", "cpufreq.frequency"]
    expected += ["powercap.time_window", "powercap.power_limit", "powercap.enabled"]
    assert kinds == expected
    written.clear()
    restore(devices, journal, JOB)
    assert list(dict.fromkeys(key.partition("[")[0] for key in written)) == expected[::-1]


def test_a_value_in_force_is_not_written_again(
    devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    knob = devices.knobs["cpufreq.governor[policy0]"]
    monkeypatch.setattr(knob, "write", lambda _value: pytest.fail("written"))
    outcome = apply(devices, journal, JOB, [governor_setting("policy0", "powersave")])[0]
    assert (outcome.original, outcome.applied, outcome.failed) == ("powersave", "powersave", False)


def test_nothing_is_set_if_the_journal_cannot_be_written(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree.snapshot()

    monkeypatch.setattr(atomic_file, "write", disk_full)
    outcomes = apply(devices, journal, JOB, requested_settings())
    assert all(outcome.failed and "No space left" in outcome.note for outcome in outcomes)
    assert tree.snapshot() == before


def test_originals_are_restored_although_the_journal_cannot_be_written(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree.snapshot()
    apply(devices, journal, JOB, [governor_setting("policy0", "performance")])
    apply(devices, journal, "8.0", [governor_setting("policy1", "performance")])
    on_disk = journal.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "write", disk_full)
        assert all(result.done for result in restore(devices, journal, JOB))
        assert (tree.policy(0, "scaling_governor"), tree.policy(1, "scaling_governor")) == (
            "powersave",
            "performance",
        )
        assert journal.write_error == "No space left on device"
        outcomes = apply(devices, journal, JOB, [governor_setting("policy0", "performance")])
        assert [outcome.failed for outcome in outcomes] == [True]
    assert journal.path.read_bytes() == on_disk
    again = SettingsJournal.load(journal.path)  # as after the death of the agent
    assert all(result.done for result in restore(devices, again))
    assert tree.snapshot() == before
    journal.update([])
    assert journal.write_error == ""
    assert SettingsJournal.load(journal.path).owners() == {"8.0"}


def test_claims_of_other_jobs_wait_for_the_journal(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree.snapshot()
    limit = "sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw"
    jobs = Arbiter({JOB: JobAllocation(frozenset({0, 1})), "8.0": JobAllocation(frozenset({0, 1}))})
    apply(devices, journal, JOB, rapl_limit_settings("package-0", 150, 1.0), arbiter=jobs)
    apply(devices, journal, "8.0", rapl_limit_settings("package-0", 100, 1.0), arbiter=jobs)
    assert tree.get(limit) == "150000000"
    left = Arbiter({"8.0": JobAllocation(frozenset({0, 1}))})
    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "write", disk_full)
        restore(devices, journal, JOB, arbiter=left)
        assert tree.get(limit) == "150000000"
    reconcile(devices, journal, left)
    assert tree.get(limit) == "100000000"
    restore(devices, journal, "8.0", arbiter=Arbiter({}))
    assert tree.snapshot() == before
    assert not journal.path.exists()


@pytest.mark.parametrize("step_uw", [1, 125_000])
def test_a_value_near_the_original_is_restored_after_a_kill(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch, step_uw: int
) -> None:
    """The agent is killed between a write to the hardware and the next write of the journal.

    The written value is within the rounding of the hardware. In a variant of the test, the hardware rounds
    the original value too, so that a later write cannot restore it exactly.
    """

    class Killed(BaseException):
        pass

    def killed(*_arguments: object, **_options: object) -> None:
        if limit() != 150_000_000:
            raise Killed
        real_write(*_arguments, **_options)

    def limit() -> int:
        return int(tree.get("sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw"))

    def rounded(path: Path, text: str) -> None:
        real_write_text(path, str(int(text) // step_uw * step_uw) if path.name.endswith("limit_uw") else text)

    real_write, real_write_text = atomic_file.write, powercap.write_text
    monkeypatch.setattr(powercap, "write_text", rounded)
    tree.put("sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw", 250_050_000)
    apply(devices, journal, JOB, rapl_limit_settings("package-0", 150, 1.0))
    monkeypatch.setattr(atomic_file, "write", killed)
    with pytest.raises(Killed):
        apply(devices, journal, JOB, rapl_limit_settings("package-0", 249.99, 1.0))
    monkeypatch.undo()
    monkeypatch.setattr(powercap, "write_text", rounded)
    assert limit() == 249_990_000 // step_uw * step_uw
    again = SettingsJournal.load(journal.path)
    assert all(result.done for result in restore(devices, again, JOB))
    assert limit() == 250_050_000 // step_uw * step_uw
    assert restore(devices, again, JOB) == []


def test_a_value_changed_by_another_program_stays(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal
) -> None:
    apply(devices, journal, JOB, requested_settings())
    tree.put("sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw", 120_000_000)
    results = {result.key: result for result in restore(devices, journal, JOB)}
    changed = results["powercap.power_limit[package-0]"]
    assert (changed.done, changed.note) == (False, "left alone: another program set 120 W")
    assert tree.get("sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw") == "120000000"
    assert results["powercap.power_limit[package-1]"].done
    assert not journal.entries  # the value is no longer ours, so the restore is not repeated


def test_originals_survive_further_settings_of_the_same_job(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal
) -> None:
    before = tree.snapshot()
    apply(devices, journal, JOB, [governor_setting("policy0", "performance")])
    outcome = apply(devices, journal, JOB, [governor_setting("policy0", "powersave")])[0]
    assert outcome.original == "powersave"
    apply(devices, journal, JOB, [governor_setting("policy0", "performance")])
    restore(devices, journal, JOB)
    assert tree.snapshot() == before


def test_a_journal_of_an_older_agent_is_restored(tree: Tree, devices: NodeDevices, tmp_path: Path) -> None:
    tree.put("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance")
    entry = {"key": "cpufreq.governor[policy0]", "owner": "7.0", "original": "powersave"}
    along = {**entry, "key": "cpufreq.epp[policy0]", "original": "balance_performance"}
    entries = [{**entry, "asked": "performance", "written": "performance"}]
    entries += [{**along, "asked": None, "written": "balance_performance"}]
    path = tmp_path / "state/journal.json"
    path.write_text(json.dumps({"version": 1, "entries": entries}))
    journal = SettingsJournal.load(path)
    assert (journal.load_error, journal.owners()) == ("", {"7.0"})
    assert all(result.done for result in restore(devices, journal))
    assert tree.policy(0, "scaling_governor") == "powersave"
    assert not path.exists()


def test_one_refused_write_does_not_stop_the_others(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(_value: str) -> None:
        raise DeviceError("x", "No data available (locked)")

    monkeypatch.setattr(devices.knobs["powercap.power_limit[package-0]"], "write", locked)
    outcomes = {outcome.key: outcome for outcome in apply(devices, journal, JOB, requested_settings())}
    failed = outcomes.pop("powercap.power_limit[package-0]")
    assert (failed.failed, failed.applied, failed.note) == (True, None, "No data available (locked)")
    assert not any(outcome.failed for outcome in outcomes.values())


def test_a_write_that_has_no_effect_is_a_failure(
    devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.knobs["powercap.power_limit[package-0]"], "write", lambda _value: None)
    outcomes = {o.key: o for o in apply(devices, journal, JOB, rapl_limit_settings("package-0", 150, 1.0))}
    outcome = outcomes["powercap.power_limit[package-0]"]
    assert (outcome.failed, outcome.applied) == (True, "250000000")
    assert outcome.note == "the hardware holds 250 W"


def test_a_failed_restore_is_repeated(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree.snapshot()
    apply(devices, journal, JOB, requested_settings())

    def refuse(_value: str) -> None:
        raise DeviceError("x", "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(devices.knobs["cpufreq.governor[policy0]"], "write", refuse)
        results = restore(devices, journal, JOB)
    assert [(r.key, r.note) for r in results if not r.done] == [
        ("cpufreq.governor[policy0]", "Device or resource busy")
    ]
    again = SettingsJournal.load(journal.path)
    assert list(again.entries) == ["cpufreq.governor[policy0]"]
    assert all(result.done for result in restore(devices, again))
    assert tree.snapshot() == before


def test_a_change_by_another_program_keeps_unrelated_side_effects_for_another_attempt(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree.policy(0, "energy_performance_preference")
    settings = [governor_setting("policy0", "performance"), *rapl_limit_settings("package-0", 150, 1.0)]
    with monkeypatch.context() as patch:
        ActiveDriver(tree, devices, patch, forgets=True)
        apply(devices, journal, JOB, settings)
    tree.put("sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw", 120_000_000)

    def refuse(_value: str) -> None:
        raise DeviceError("x", "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(devices.knobs["cpufreq.epp[policy0]"], "write", refuse)
        restore(devices, journal, JOB)
    assert tree.policy(0, "energy_performance_preference") == "performance"
    restore(devices, journal)
    assert tree.policy(0, "energy_performance_preference") == before


class ActiveDriver:
    """Fake of the driver intel_pstate in active mode.

    While the governor is `performance`, the driver forces the energy preference to `performance` and refuses
    to write other values.

    Source: kernel, drivers/cpufreq/intel_pstate.c, intel_pstate_set_energy_pref_index (EBUSY).
    """

    def __init__(self, tree: Tree, devices: NodeDevices, patch: pytest.MonkeyPatch, *, forgets: bool) -> None:
        self.tree, self.forgets = tree, forgets
        self.saved = "balance_performance"
        self.governor_write = devices.knobs["cpufreq.governor[policy0]"].write
        self.epp_write = devices.knobs["cpufreq.epp[policy0]"].write
        patch.setattr(devices.knobs["cpufreq.governor[policy0]"], "write", self.write_governor)
        patch.setattr(devices.knobs["cpufreq.epp[policy0]"], "write", self.write_epp)

    def write_governor(self, value: str) -> None:
        self.governor_write(value)
        if value == "performance":
            self.saved = self.tree.policy(0, "energy_performance_preference")
            self.epp_write("performance")
        else:
            self.epp_write("default" if self.forgets else self.saved)

    def write_epp(self, value: str) -> None:
        if self.tree.policy(0, "scaling_governor") == "performance" and value != "performance":
            raise DeviceError("x", "Device or resource busy")
        self.epp_write(value)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("with_preference", [False, True])
def test_the_preference_is_restored_although_it_depends_on_the_governor(
    tree: Tree,
    devices: NodeDevices,
    journal: SettingsJournal,
    monkeypatch: pytest.MonkeyPatch,
    forgets: bool,
    with_preference: bool,
) -> None:
    before = tree.snapshot()
    ActiveDriver(tree, devices, monkeypatch, forgets=forgets)
    settings = [governor_setting("policy0", "performance")]
    settings += [epp_setting("policy0", "performance")] if with_preference else []
    assert not any(outcome.failed for outcome in apply(devices, journal, JOB, settings))
    assert tree.policy(0, "energy_performance_preference") == "performance"
    assert all(result.done for result in restore(devices, journal, JOB))
    assert tree.snapshot() == before


def test_the_userspace_speed_is_restored_with_its_governor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    tree = Tree(tmp_path / "node").cpus(1).cpufreq(1, "acpi-cpufreq", "userspace")
    devices, journal = discover(tree.root), SettingsJournal(tmp_path / "state/journal.json")
    knob = devices.knobs["cpufreq.governor[policy0]"]
    write = knob.write

    def forgetting(value: str) -> None:
        write(value)
        tree.put("sys/devices/system/cpu/cpufreq/policy0/scaling_setspeed", "<unsupported>")

    with monkeypatch.context() as patch:
        patch.setattr(knob, "write", forgetting)
        apply(devices, journal, JOB, [governor_setting("policy0", "performance")])
    assert all(result.done for result in restore(devices, journal, JOB))
    assert tree.policy(0, "scaling_setspeed") == "2000000"


def test_boost_is_restored_before_the_bounds_that_it_overwrites(
    tree: Tree, journal: SettingsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.put("sys/devices/system/cpu/cpufreq/boost", 1)
    tree.put("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", 3000000)
    devices = discover(tree.root)
    before = tree.snapshot()
    boost = devices.knobs["cpufreq.boost[all]"]
    write = boost.write

    def overwriting(value: str) -> None:
        write(value)
        limit = 3400000 if value == "1" else 2600000
        for number in (0, 1):
            tree.put(f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_max_freq", limit)

    monkeypatch.setattr(boost, "write", overwriting)
    apply(
        devices,
        journal,
        JOB,
        [Setting("cpufreq.boost[all]", "0"), frequency_range_setting("policy0", 800000, 2000000)],
    )
    assert tree.policy(0, "scaling_max_freq") == "2000000"
    assert all(result.done for result in restore(devices, journal, JOB))
    assert tree.snapshot() == before
    devices.close()


def test_a_device_that_is_gone_keeps_its_entry(
    tree: Tree, devices: NodeDevices, journal: SettingsJournal
) -> None:
    apply(devices, journal, JOB, [governor_setting("policy1", "performance")])
    for file in (tree.root / "sys/devices/system/cpu/cpufreq/policy1").iterdir():
        file.unlink()
    found = discover(tree.root)
    results = restore(found, journal, JOB)
    found.close()
    assert {(result.done, result.note) for result in results} == {(False, "the device is gone")}
    assert journal.entries


def test_a_damaged_journal_on_a_read_only_file_system_is_renamed_before_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, one = tmp_path / "journal.json", JournalEntry("a", "1", {}, "2", None)
    path.write_text("damaged")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        journal = SettingsJournal.load(path)
        assert journal.load_error.endswith("kept as journal.json")
        with pytest.raises(OSError, match="Read-only"):
            journal.update([one])
    assert path.read_text() == "damaged"
    journal.update([one])
    assert (tmp_path / "journal.json.damaged").read_text() == "damaged"
    assert list(SettingsJournal.load(path).entries) == ["a"]


def test_a_damaged_journal_is_renamed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    path.write_text('{"version": 1, "entries": [{"key": 5}]}')
    journal = SettingsJournal.load(path)
    assert (journal.entries, path.exists()) == ({}, False)
    assert (tmp_path / "journal.json.damaged").exists()
    assert "not a settings journal" in journal.load_error


CHURN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_journal import JOB, requested_settings
from slurm_energy.devices.discovery import discover
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.control.apply import apply
from slurm_energy.control.restore import restore
devices, journal = discover(Path(sys.argv[1])), SettingsJournal.load(Path(sys.argv[2]))
restore(devices, journal)
print("ready", flush=True)
while True:
    apply(devices, journal, JOB, requested_settings())
    restore(devices, journal, JOB)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [12, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_kill_9_at_any_instant_loses_no_original(
    tree: Tree, devices: NodeDevices, tmp_path: Path, rounds: int
) -> None:
    before = tree.snapshot()
    path = tmp_path / "state/journal.json"
    chance = random.Random(4711)
    changed = killed = 0
    while (
        killed < rounds or changed <= rounds // 10
    ):  # on a busy machine few kills hit a write, so the rounds continue
        killed += 1
        process = subprocess.Popen(
            [sys.executable, "-c", CHURN, str(tree.root), str(path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.03))
        finally:
            process.kill()
            process.wait(timeout=60)
            assert process.stdout is not None
            process.stdout.close()
        changed += tree.snapshot() != before
        journal = SettingsJournal.load(path)
        assert not journal.load_error
        assert all(result.done for result in restore(devices, journal))
        assert tree.snapshot() == before
