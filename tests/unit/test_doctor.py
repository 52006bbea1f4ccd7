"""senergy doctor: what it finds in a tree of files, what it makes of it, and the exit code."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import Tree

from slurm_energy import __version__
from slurm_energy.agent import inspection
from slurm_energy.cli import connection, doctor
from slurm_energy.cli.main import main
from slurm_energy.devices import catalogue
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.hardware import Hardware
from slurm_energy.devices.interface import EnergyCounter, Knob
from slurm_energy.devices.powercap import ZoneCounter
from slurm_energy.devices.preference import COMPONENT_SOURCES, NODE_SOURCES
from slurm_energy.errors import UnavailableError
from slurm_energy.reports import health, healthpage
from slurm_energy.reports.findings import CounterSeen, Findings, Interface, KnobSeen, SlurmSide
from slurm_energy.reports.health import State
from slurm_energy.slurm import conffile

AGENT = {"version": __version__, "spooled": 0, "devices": {"counters": ["powercap:package-0"]}}
COUNTER = CounterSeen("powercap:package-0", "cpu", "powercap:intel-rapl", "measured", 7, "", 700.0)
WELL = Findings(
    node="n1",
    version=__version__,
    time=1.0,
    root=True,
    hardware=Hardware("Xeon", 4),
    counters=(COUNTER,),
    knobs=(KnobSeen("cpufreq.governor[policy0]", "cpufreq.governor", "powersave", True),),
    agent=AGENT,
    controller={"version": __version__},
    clock_offset_s=0.01,
    slurm=SlurmSide("/etc/slurm/slurm.conf", "", "/p", "/e", True, (), "/lib/energy.so"),
)


def states(found: Findings) -> dict[str, State]:
    return {check.name: check.state for check in health.judge(found)}


def test_a_node_with_everything_is_healthy() -> None:
    checks = health.judge(WELL)
    assert [check.name for check in checks if check.state in (State.DEGRADED, State.FAILED)] == []
    assert health.healthy(checks)
    assert healthpage.faults(checks) == []


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"counters": ()}, "energy cpu", State.DEGRADED),
        (
            {"counters": (dataclasses.replace(COUNTER, energy_uj=None, error="EIO"),)},
            "energy cpu",
            State.DEGRADED,
        ),
        ({"counters": (dataclasses.replace(COUNTER, wraps_after_s=1.0),)}, "sampling", State.DEGRADED),
        (
            {"counters": (dataclasses.replace(COUNTER, energy_uj=0, watts=0.0),)},
            "energy cpu",
            State.DEGRADED,
        ),
        ({"agent": "no such file"}, "agent", State.FAILED),
        ({"agent": {**AGENT, "unrestored": ["x"]}}, "settings left", State.DEGRADED),
        ({"agent": {**AGENT, "version": "0"}}, "agent", State.DEGRADED),
        ({"agent": {**AGENT, "devices": {"counters": []}}}, "agent's devices", State.DEGRADED),
        ({"agent": AGENT | {"rejected": 3}}, "rejected records", State.DEGRADED),
        ({"agent": AGENT | {"deferred": 2}}, "retried records", State.DEGRADED),
        ({"state_free_mb": 1.0, "spool_limit_mb": 512}, "spool", State.DEGRADED),
        ({"controller": "connection refused"}, "controller", State.DEGRADED),
        ({"clock_offset_s": -3600.0}, "clock", State.DEGRADED),
        ({"munge_error": "no socket"}, "munge", State.FAILED),
        ({"config_error": "line 3"}, "configuration", State.FAILED),
        ({"meter_error": "bmc.password: mode 0644"}, "node_power", State.DEGRADED),
        (
            {"interfaces": (Interface("NVML", False, False, True, "c", "f"),)},
            "interface NVML",
            State.DEGRADED,
        ),
        ({"knobs": (KnobSeen("k[0]", "k", None, True),)}, "k", State.DEGRADED),
        ({"knobs": (KnobSeen("k[0]", "k", "1", False),)}, "k", State.DEGRADED),
        ({"slurm": SlurmSide("/s", prolog="", epilog="/e", spank="x")}, "Prolog", State.DEGRADED),
        ({"slurm": dataclasses.replace(WELL.slurm, broken=("/p",))}, "hook files", State.FAILED),
        ({"slurm": dataclasses.replace(WELL.slurm, prolog_at_alloc=False)}, "PrologFlags", State.DEGRADED),
        ({"slurm": dataclasses.replace(WELL.slurm, spank_required=True)}, "SPANK", State.DEGRADED),
    ],
)
def test_each_fault_is_said_and_ends_with_a_failure(change: dict[str, Any], check: str, state: State) -> None:
    found = dataclasses.replace(WELL, **change)
    assert states(found)[check] is state
    assert not health.healthy(health.judge(found))


def test_what_a_node_does_not_have_is_no_fault() -> None:
    absent = Interface("IPMI", False, False, False, "", "")
    checks = health.judge(dataclasses.replace(WELL, interfaces=(absent,)))
    assert {c.name: c.state for c in checks}["interface IPMI"] is State.ABSENT
    assert health.healthy(checks)


def test_counters_that_only_the_agent_may_read_are_no_fault_for_a_user() -> None:
    hidden = dataclasses.replace(COUNTER, energy_uj=None, error="Permission denied")
    found = dataclasses.replace(WELL, root=False, counters=(hidden,))
    assert states(found)["energy cpu"] is State.OK
    assert states(dataclasses.replace(found, agent="gone"))["energy cpu"] is State.DEGRADED


def test_a_tree_is_described_as_it_is(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpus(4).cpufreq(4, "intel_pstate", "powersave").two_packages()
    tree.put("sys/class/powercap/intel-rapl:1/energy_uj", 1234)
    found = inspection.inspect(None, lambda _: AGENT, lambda _: {"started": 0.0, "uptime_s": 5.0}, tmp_path)
    energy = {counter.key: counter.energy_uj for counter in found.counters}
    assert energy["powercap:package-0"] == 1234
    knobs = {knob.key: knob.value for knob in found.knobs}
    assert knobs["powercap.power_limit[package-0]"] == "250 W"
    assert knobs["cpufreq.governor[policy3]"] == "powersave"
    present = {interface.name for interface in found.interfaces if interface.present}
    assert present == {"cpufreq", "powercap"}
    assert found.clock_offset_s is not None and found.clock_offset_s > 1e9


def test_a_counter_s_power_is_what_it_moved_while_it_was_watched(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpus(4).two_packages()
    file = os.open(tree.put("sys/class/powercap/intel-rapl:1/energy_uj", 262_143_300_000), os.O_WRONLY)
    done = threading.Event()

    def count() -> None:
        started = time.monotonic()
        while not done.wait(0.002):  # wraps soon
            moved_uj = int((time.monotonic() - started) * 100e6)
            os.pwrite(file, b"%012d\n" % ((262_143_300_000 + moved_uj) % 262_143_328_851), 0)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        found = inspection.inspect(None, lambda _: AGENT, lambda _: {}, tmp_path)
    finally:
        done.set()
        counting.join()
        os.close(file)
    watts = {counter.key: counter.watts for counter in found.counters}
    assert 0 < (watts["powercap:package-0"] or 0) < 1000
    assert watts["powercap:package-1"] == 0
    assert " W" in {check.name: check.found for check in health.judge(found)}["energy cpu"]


class _Clock:
    """Time that passes in sleep and in readings only."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = False

    def monotonic(self) -> float:
        self.asked = True
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_power_is_right_though_the_machine_stood_still_in_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three timed readings take 60 ms each after the counter was looked at, the others no time."""
    Tree(tmp_path).cpus(4).two_packages()
    clock, readings = _Clock(), itertools.count()

    def read(counter: EnergyCounter) -> int:
        shown_uj = int(clock.now_s * 100e6)
        if clock.asked and counter.key == "powercap:package-0" and next(readings) < 3:
            clock.now_s += 0.06
        return shown_uj

    monkeypatch.setattr(ZoneCounter, "read", read)
    monkeypatch.setattr(inspection, "time", clock)
    found = inspection.inspect(None, lambda _: AGENT, lambda _: {}, tmp_path)
    watts = {counter.key: counter.watts for counter in found.counters}
    assert watts["powercap:package-0"] == pytest.approx(100, rel=0.011)


def test_every_source_of_energy_belongs_to_one_interface() -> None:
    listed = [source for known in catalogue.INTERFACES for source in known.sources]
    assert sorted(listed) == sorted({source.name for source in (*COMPONENT_SOURCES, *NODE_SOURCES)})


def test_every_knob_belongs_to_one_interface() -> None:
    families = [family for known in catalogue.INTERFACES for family in known.knobs]
    kinds = {kind.kind.partition(".")[0] for kind in subclasses(Knob) if "kind" in vars(kind)}
    assert sorted(families) == sorted(kinds)


def subclasses(parent: type[Knob]) -> list[type[Knob]]:
    return [
        found
        for child in parent.__subclasses__()
        if child.__module__.startswith("slurm_energy")
        for found in (child, *subclasses(child))
    ]


@pytest.mark.parametrize(("source", "word"), [("ipmi:dcmi", "ipmitool"), ("redfish:power", "curl")])
def test_a_silent_bmc_comes_with_the_command_that_asks_it(source: str, word: str) -> None:
    silent = CounterSeen(source, "node", source, "measured", None, "no answer within 4 s", None)
    checks = health.judge(dataclasses.replace(WELL, counters=(COUNTER, silent)))
    (node,) = [check for check in checks if check.name == "energy node"]
    assert node.state is State.DEGRADED
    assert "no answer" in node.found and word in node.fix


def test_an_interface_is_in_use_through_its_counters_or_knobs(tmp_path: Path) -> None:
    Tree(tmp_path).cpus(4).cpufreq(4, "intel_pstate", "powersave").two_packages()
    devices = discover(tmp_path)
    used = {interface.name for interface in inspection.interfaces(tmp_path, devices) if interface.in_use}
    devices.close()
    assert used == {"cpufreq", "powercap"}


def test_interfaces_are_told_by_what_the_kernel_shows(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpus(2)
    tree.put("proc/cpuinfo", "vendor_id : AuthenticAMD\nflags : fpu hypervisor")
    tree.put("sys/class/hwmon/hwmon0/name", "amd_energy")
    tree.put("sys/class/hwmon/hwmon1/name", "power_meter")
    tree.put("sys/cray/pm_counters/energy", "1 J")
    tree.put("dev/ipmi0", "")
    tree.put("sys/bus/pci/devices/0000:01:00.0/class", "0x030200")
    tree.put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    known = {interface.name: interface for interface in inspection.interfaces(tmp_path)}
    assert {name for name, i in known.items() if i.present} == {
        "hwmon amd_energy",
        "hwmon power meter",
        "Cray pm_counters",
        "IPMI",
    }
    assert {name for name, i in known.items() if i.expected} == {"NVML"}


def slurm_files(folder: Path, prolog_mode: int = 0o755) -> Path:
    prolog = folder / "prolog"
    prolog.write_text("#!/bin/sh\nexec senergy-hook begin\n")
    prolog.chmod(prolog_mode)
    (folder / "energy.so").write_bytes(b"")
    (folder / "spank").mkdir()
    (folder / "spank/a.conf").write_text(
        f"optional {folder}/energy.so policy_file={folder}/policies # ours\n"
    )
    (folder / "plugstack.conf").write_text("include spank/*.conf\nrequired other.so\n")
    (folder / "more.conf").write_text(f"Prolog = {prolog}\nEPILOG={prolog}\n")
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=c # a cluster\nInclude more.conf\nPrologFlags=Alloc,Contain\n")
    return conf


def test_slurm_s_files_are_read_through_their_includes(tmp_path: Path) -> None:
    conf = slurm_files(tmp_path)
    side = inspection.slurm_side(conf)
    assert (side.prolog, side.epilog, side.prolog_at_alloc) == (f"{tmp_path}/prolog",) * 2 + (True,)
    assert (side.spank, side.spank_required) == (f"{tmp_path}/energy.so", False)
    assert (side.policy_file, side.policy_file_missing) == (f"{tmp_path}/policies", True)
    assert side.broken == ()
    assert [line.plugin for line in conffile.spank_lines(conf, {})] == [f"{tmp_path}/energy.so", "other.so"]


def test_a_hook_that_cannot_be_run_is_found(tmp_path: Path) -> None:
    conf = slurm_files(tmp_path, prolog_mode=0o644)
    assert f"{tmp_path}/prolog" in inspection.slurm_side(conf).broken


def test_an_include_of_itself_ends(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("include slurm.conf\nProlog=/x\n")
    assert "/x" in conffile.settings(conf)["prolog"]


@pytest.fixture
def without_daemons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    def nobody(*_: Any) -> dict[str, Any]:
        raise UnavailableError("agent", "No such file or directory")

    monkeypatch.setattr(connection, "ask_agent", nobody)
    monkeypatch.setattr(doctor, "_ask_controller", nobody)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    return tmp_path


def test_the_command_says_what_is_wrong_and_exits_with_1(
    without_daemons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "failed    agent" in text
    assert "systemctl start senergyd" in text
    assert "is degraded:" in text
    assert main(["doctor", "--quiet"]) == 1
    assert all(line.startswith(("failed", "degraded")) for line in capsys.readouterr().out.splitlines())


def test_a_bad_configuration_is_a_finding_and_no_error(
    without_daemons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = without_daemons / "energy.toml"
    bad.write_text("[agent]\nsampling = 3\n")
    assert main(["doctor", "--json", "--config", str(bad)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["healthy"]
    (check,) = [check for check in report["checks"] if check["name"] == "configuration"]
    assert check["state"] == "failed"
    assert "sampling" in check["found"]
