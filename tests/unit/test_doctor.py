"""Tests of `senergy doctor` on hosts that are trees of files.

The tests check the findings, their diagnosis and the exit code.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import Tree

from slurm_energy import __version__
from slurm_energy.cli import doctor
from slurm_energy.cli.main import main
from slurm_energy.config import TuningConfig
from slurm_energy.devices.cpu.powercap import RaplEnergyCounter
from slurm_energy.devices.cpu.resctrl import TRAFFIC, ResctrlSupport
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError, EnergyCounter, Knob
from slurm_energy.devices.gpu.nvml import NvmlLibrary
from slurm_energy.devices.hardware import CpuPackage, GpuInfo, NodeHardware
from slurm_energy.devices.source_priority import COMPONENT_SOURCES, NODE_SOURCES
from slurm_energy.doctor import diagnosis, inspection, interface_catalogue, report
from slurm_energy.doctor import slurm_files as slurm_side_module
from slurm_energy.doctor.findings import (
    CounterFinding,
    FileFault,
    FileUse,
    HostFindings,
    InterfaceFinding,
    KnobFinding,
    SlurmFileFindings,
)
from slurm_energy.doctor.slurm_files import inspect_slurm_files
from slurm_energy.doctor.verdict import CheckResult, CheckState
from slurm_energy.errors import UnavailableError
from slurm_energy.policies.policy_copy import update_copy
from slurm_energy.protocol import agent_socket
from slurm_energy.protocol.policy_file_requests import PublishedPolicies
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.plugin_release import plugin_release

AGENT = {"version": __version__, "spooled": 0, "devices": {"counters": ["powercap:package-0"]}}
COUNTER = CounterFinding("powercap:package-0", "cpu", "powercap:intel-rapl", "measured", 7, "", 700.0)
WELL = HostFindings(
    node="n1",
    version=__version__,
    time=1.0,
    root=True,
    hardware=NodeHardware("Xeon", 4),
    counters=(COUNTER,),
    knobs=(KnobFinding("cpufreq.governor[policy0]", "cpufreq.governor", "powersave", True),),
    agent=AGENT,
    controller={"version": __version__},
    clock_offset_s=0.01,
    slurm=SlurmFileFindings(
        "/etc/slurm/slurm.conf", "", "/p", "/e", True, (), "/lib/energy.so", is_compute_node=True
    ),
)


def states(found: HostFindings) -> dict[str, CheckState]:
    return {check.name: check.state for check in diagnosis.diagnose(found)}


def test_a_node_with_everything_is_healthy() -> None:
    checks = diagnosis.diagnose(WELL)
    assert [check.name for check in checks if check.state in (CheckState.DEGRADED, CheckState.FAILED)] == []
    assert diagnosis.is_healthy(checks)
    assert report.faults(checks) == []


def remedies(found: HostFindings) -> dict[str, str]:
    return {check.name: check.fix for check in diagnosis.diagnose(found)}


@pytest.mark.parametrize(
    ("enabled", "fix"), [(True, "systemctl start senergyd"), (False, "senergy setup node")]
)
def test_an_agent_that_is_not_enabled_is_set_up_first(enabled: bool, fix: str) -> None:
    found = dataclasses.replace(WELL, agent="no such file", is_agent_enabled=enabled)
    assert remedies(found)["agent"] == fix


def test_the_link_of_the_unit_shows_whether_the_agent_is_enabled(tmp_path: Path) -> None:
    Tree(tmp_path).cpus(4)
    inspected = [inspection.inspect(None, lambda _: AGENT, lambda _: {}, tmp_path)]
    link = tmp_path / "etc/systemd/system/multi-user.target.wants/senergyd.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/lib/systemd/system/senergyd.service")
    inspected.append(inspection.inspect(None, lambda _: AGENT, lambda _: {}, tmp_path))
    assert [found.is_agent_enabled for found in inspected] == [False, True]


@pytest.mark.parametrize(
    ("is_compute_node", "fix"),
    [
        (True, "senergy setup node"),
        (False, "senergy setup login"),
        (None, "senergy setup node   (on a login node: senergy setup login)"),
    ],
)
def test_missing_lines_of_slurm_are_added_by_setup(is_compute_node: bool | None, fix: str) -> None:
    bare = SlurmFileFindings("/etc/slurm/slurm.conf", is_compute_node=is_compute_node)
    assert remedies(dataclasses.replace(WELL, slurm=bare))["SPANK"] == fix
    controller = dataclasses.replace(bare, is_controller=True, is_compute_node=True)
    found = remedies(dataclasses.replace(WELL, slurm=controller))
    assert (found["job_submit"], found["Prolog"]) == ("senergy setup controller", "senergy setup node")


def test_the_remedy_for_a_controller_that_does_not_start_is_in_its_journal() -> None:
    down = dataclasses.replace(
        WELL, controller="refused", slurm=dataclasses.replace(WELL.slurm, is_controller=True)
    )
    assert "journalctl -u senergyctld" in remedies(down)["controller"]


def test_the_summary_names_each_check_once() -> None:
    checks = [CheckResult("configuration", CheckState.DEGRADED, f"key {key}") for key in "ab"]
    assert report.lines(WELL, checks)[-1] == "n1 is degraded: configuration"


def test_a_virtual_machine_has_no_counters() -> None:
    found = dataclasses.replace(WELL, counters=(), knobs=(), virtual=True)
    assert remedies(found)["energy cpu"] == "nothing can be done in a virtual machine"
    (knobs,) = (check for check in diagnosis.diagnose(found) if check.name == "knobs")
    assert (knobs.state, knobs.fix) == (CheckState.ABSENT, "")


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"counters": ()}, "energy cpu", CheckState.DEGRADED),
        (
            {"counters": (dataclasses.replace(COUNTER, energy_uj=None, error="EIO"),)},
            "energy cpu",
            CheckState.DEGRADED,
        ),
        ({"counters": (dataclasses.replace(COUNTER, wraps_after_s=1.0),)}, "sampling", CheckState.DEGRADED),
        (
            {"counters": (dataclasses.replace(COUNTER, energy_uj=0, watts=0.0),)},
            "energy cpu",
            CheckState.DEGRADED,
        ),
        ({"agent": "no such file"}, "agent", CheckState.FAILED),
        ({"agent": {**AGENT, "unrestored": ["x"]}}, "settings left", CheckState.DEGRADED),
        ({"agent": {**AGENT, "version": "0"}}, "agent", CheckState.DEGRADED),
        ({"agent": {**AGENT, "devices": {"counters": []}}}, "agent's devices", CheckState.DEGRADED),
        ({"agent": AGENT | {"rejected": 3}}, "rejected records", CheckState.DEGRADED),
        ({"agent": AGENT | {"deferred": 2}}, "retried records", CheckState.DEGRADED),
        ({"state_free_mb": 1.0, "spool_limit_mb": 512}, "spool", CheckState.DEGRADED),
        ({"controller": "connection refused"}, "controller", CheckState.DEGRADED),
        ({"clock_offset_s": -3600.0}, "clock", CheckState.DEGRADED),
        ({"munge_error": "no socket"}, "munge", CheckState.FAILED),
        ({"config_error": "line 3"}, "configuration", CheckState.FAILED),
        ({"meter_error": "bmc.password: mode 0644"}, "node_power", CheckState.DEGRADED),
        (
            {"interfaces": (InterfaceFinding("NVML", False, False, True, "c", "f"),)},
            "interface NVML",
            CheckState.DEGRADED,
        ),
        ({"knobs": (KnobFinding("k[0]", "k", None, True),)}, "k", CheckState.DEGRADED),
        ({"knobs": (KnobFinding("k[0]", "k", "1", False),)}, "k", CheckState.DEGRADED),
        (
            {"slurm": SlurmFileFindings("/s", prolog="", epilog="/e", spank="x")},
            "Prolog",
            CheckState.DEGRADED,
        ),
        (
            {"interfaces": (InterfaceFinding("NVML", True, False, False, "c", "f", "library not found"),)},
            "interface NVML",
            CheckState.DEGRADED,
        ),
        ({"slurm": dataclasses.replace(WELL.slurm, hooks="/h")}, "hooks", CheckState.DEGRADED),
        *(
            (
                {
                    "slurm": dataclasses.replace(
                        WELL.slurm, faults=(FileFault("/p", "is missing", "do", use),), is_controller=True
                    )
                },
                f"{use} file",
                CheckState.FAILED,
            )
            for use in FileUse
        ),
        (
            {"slurm": dataclasses.replace(WELL.slurm, is_controller=True), "controller": "refused"},
            "controller",
            CheckState.FAILED,
        ),
        ({"controller": {"version": "0"}}, "controller", CheckState.DEGRADED),
        (
            {"agent": {**AGENT, "devices": {"counters": ["powercap:package-0", "x"]}}},
            "agent's devices",
            CheckState.DEGRADED,
        ),
        ({"knobs": ()}, "knobs", CheckState.DEGRADED),
        (
            {"slurm": dataclasses.replace(WELL.slurm, prolog_at_alloc=False)},
            "PrologFlags",
            CheckState.DEGRADED,
        ),
        ({"slurm": dataclasses.replace(WELL.slurm, spank_required=True)}, "SPANK", CheckState.DEGRADED),
    ],
)
def test_each_fault_is_said_and_ends_with_a_failure(
    change: dict[str, Any], check: str, state: CheckState
) -> None:
    found = dataclasses.replace(WELL, **change)
    assert states(found)[check] is state
    assert not diagnosis.is_healthy(diagnosis.diagnose(found))
    for judged in diagnosis.diagnose(found):
        if judged.state in (CheckState.DEGRADED, CheckState.FAILED):
            assert judged.finding and judged.cost and judged.fix, judged


def test_power_profiles_of_gpus_are_listed() -> None:
    gpus = [
        GpuInfo(i, i, "NVIDIA B200", None, None, None, None, power_profiles=("MAX_P", "HPC")) for i in (0, 1)
    ]
    found = dataclasses.replace(WELL, hardware=NodeHardware("Xeon", 4, gpus=(*gpus,)))
    lines = report.lines(found, diagnosis.diagnose(found))
    assert lines[:3] == ["n1: Xeon, 4 CPUs, 2 x NVIDIA B200", "power profiles of NVIDIA B200: MAX_P, HPC", ""]


def test_a_missing_search_is_told_where_jobs_are_tuned() -> None:
    for tuning, has_numpy, state, finding in (
        (TuningConfig(), True, CheckState.OK, "mode on"),
        (TuningConfig("off"), False, CheckState.OK, "mode off"),
        (
            TuningConfig("off", {"gpu": "advise"}),
            False,
            CheckState.ABSENT,
            "mode off, advise in gpu; numpy is ",
        ),
    ):
        found = dataclasses.replace(WELL, tuning=tuning, has_numpy=has_numpy)
        (check,) = (check for check in diagnosis.diagnose(found) if check.name == "tuning")
        assert (check.state, check.finding.startswith(finding)) == (state, True)
        assert diagnosis.is_healthy(diagnosis.diagnose(found))


def test_a_power_budget_is_checked_where_it_is_configured() -> None:
    gpus = tuple(GpuInfo(index, index, "A100", 400.0, 100.0, 400.0, None) for index in range(2))
    package = CpuPackage("package-0", ("package-0",), 250.0, 250.0, None)
    hardware = NodeHardware("Xeon", 4, packages=(package,), gpus=gpus)
    limits = tuple(
        KnobFinding(f"nvml.power_limit[gpu{index}]", "nvml.power_limit", "400 W", True) for index in range(2)
    )
    safe = {**AGENT, "budget": {"is_safe": True}}
    for changes, state, text in (
        ({"budget_mode": "enforce", "knobs": limits}, CheckState.OK, "every processor and GPU"),
        ({"budget_mode": "observe", "knobs": limits[:1]}, CheckState.ABSENT, "without a power limit: gpu1"),
        ({"budget_mode": "enforce", "agent": safe}, CheckState.DEGRADED, "safe limits are in force"),
        ({"budget_mode": "observe", "counters": ()}, CheckState.ABSENT, "without a power limit: gpu0, gpu1"),
        (
            {"budget_mode": "observe", "counters": (), "hardware": NodeHardware("Xeon", 4, gpus=gpus)},
            CheckState.ABSENT,
            "without a counter: the processors, gpu0, gpu1",
        ),
    ):
        found = dataclasses.replace(WELL, **{"hardware": hardware, **changes})  # type: ignore[arg-type]
        (check,) = (check for check in diagnosis.diagnose(found) if check.name == "power budget")
        assert (check.state, text in check.finding) == (state, True)
    assert "power budget" not in states(dataclasses.replace(WELL, hardware=hardware))


@pytest.mark.parametrize(
    ("support", "mode", "state", "finding", "fix"),
    [
        (ResctrlSupport(True, True, True, (TRAFFIC,)), "auto", CheckState.OK, "dram by memory traffic", ""),
        (ResctrlSupport(True, True, True, (TRAFFIC,)), "off", CheckState.ABSENT, "is off", '= "auto"'),
        (ResctrlSupport(True, True, False), "auto", CheckState.ABSENT, "not mounted", "mount -t resctrl"),
        (ResctrlSupport(True, True, False), "mount", CheckState.ABSENT, "at its start", "restart senergyd"),
        (ResctrlSupport(True, True, True), "auto", CheckState.ABSENT, "counts no memory traffic", ""),
        (
            ResctrlSupport(True, False, False),
            "auto",
            CheckState.ABSENT,
            "no resctrl",
            "CONFIG_X86_CPU_RESCTRL",
        ),
    ],
)
def test_the_cost_of_an_attribution_by_cpu_time_is_stated(
    support: ResctrlSupport, mode: str, state: CheckState, finding: str, fix: str
) -> None:
    dram = dataclasses.replace(COUNTER, key="powercap:dram", component="dram")
    found = dataclasses.replace(WELL, counters=(COUNTER, dram), resctrl=support, resctrl_mode=mode)
    (check,) = (check for check in diagnosis.diagnose(found) if check.name == "attribution")
    assert (check.state, finding in check.finding, fix in check.fix) == (state, True, True)
    assert ("+125 %" in check.cost) == (state is not CheckState.OK)
    assert "attribution" not in states(dataclasses.replace(found, counters=(COUNTER,)))
    assert "attribution" not in states(
        dataclasses.replace(found, resctrl=ResctrlSupport(False, False, False))
    )


def test_what_a_node_does_not_have_is_no_fault() -> None:
    absent = InterfaceFinding("IPMI", False, False, False, "", "")
    checks = diagnosis.diagnose(dataclasses.replace(WELL, interfaces=(absent,)))
    assert {c.name: c.state for c in checks}["interface IPMI"] is CheckState.ABSENT
    assert diagnosis.is_healthy(checks)


def test_counters_that_only_the_agent_may_read_are_no_fault_for_a_user() -> None:
    hidden = dataclasses.replace(COUNTER, energy_uj=None, error="Permission denied")
    found = dataclasses.replace(WELL, root=False, counters=(hidden,))
    assert states(found)["energy cpu"] is CheckState.OK
    assert states(dataclasses.replace(found, agent="gone"))["energy cpu"] is CheckState.DEGRADED


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
    assert " W" in {check.name: check.finding for check in diagnosis.diagnose(found)}["energy cpu"]


class _Clock:
    """A clock that stands still except in `sleep`, which advances the clock by the requested seconds."""

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
    """The doctor shows the correct power although readings of a counter are delayed.

    In the test, the machine stops for 60 ms in each of the first three readings, after the counter was
    read and before the time is read. Later readings are not delayed.
    """
    Tree(tmp_path).cpus(4).two_packages()
    clock, readings = _Clock(), itertools.count()

    def read(counter: EnergyCounter) -> int:
        shown_uj = int(clock.now_s * 100e6)
        if clock.asked and counter.key == "powercap:package-0" and next(readings) < 3:
            clock.now_s += 0.06
        return shown_uj

    monkeypatch.setattr(RaplEnergyCounter, "read", read)
    monkeypatch.setattr(inspection, "time", clock)
    found = inspection.inspect(None, lambda _: AGENT, lambda _: {}, tmp_path)
    watts = {counter.key: counter.watts for counter in found.counters}
    assert watts["powercap:package-0"] == pytest.approx(100, rel=0.011)


def test_every_source_of_energy_belongs_to_one_interface() -> None:
    listed = [source for known in interface_catalogue.INTERFACES for source in known.sources]
    assert sorted(listed) == sorted({source.name for source in (*COMPONENT_SOURCES, *NODE_SOURCES)})


def test_every_knob_belongs_to_one_interface() -> None:
    families = [family for known in interface_catalogue.INTERFACES for family in known.knobs]
    kinds = {kind.name.partition(".")[0] for kind in subclasses(Knob) if "name" in vars(kind)}
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
    silent = CounterFinding(source, "node", source, "measured", None, "no answer within 4 s", None)
    checks = diagnosis.diagnose(dataclasses.replace(WELL, counters=(COUNTER, silent)))
    (node,) = [check for check in checks if check.name == "energy node"]
    assert node.state is CheckState.DEGRADED
    assert "no answer" in node.finding and word in node.fix


def test_an_interface_is_in_use_through_its_counters_or_knobs(tmp_path: Path) -> None:
    Tree(tmp_path).cpus(4).cpufreq(4, "intel_pstate", "powersave").two_packages()
    devices = discover(tmp_path)
    used = {interface.name for interface in inspection.interfaces(tmp_path, devices) if interface.in_use}
    devices.close()
    assert used == {"cpufreq", "powercap"}


def test_interfaces_are_those_that_the_kernel_exposes(tmp_path: Path) -> None:
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


NODES = "NodeName=n[1-4] CPUs=4\nNodeName=alias NodeHostname=h1 CPUs=4\nNodeName=DEFAULT Sockets=1\n"


@pytest.fixture(autouse=True)
def own_files_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_side_module, "TRUSTED_UIDS", {0, os.geteuid()})


def slurm_files(folder: Path, prolog_mode: int = 0o755, more: str = "") -> Path:
    prolog = folder / "prolog"
    prolog.write_text("#!/bin/sh\nexec senergy-hook begin\n")
    prolog.chmod(prolog_mode)
    (folder / "energy.so").write_bytes(b"")
    (folder / "spank").mkdir()
    (folder / "spank/a.conf").write_text(
        f"optional {folder}/energy.so policy_file={folder}/policies socket={folder}/run/a.sock # ours\n"
    )
    (folder / "plugstack.conf").write_text("include spank/*.conf\nrequired other.so\n")
    (folder / "more.conf").write_text(f"Prolog = {prolog}\nEPILOG={prolog}\n")
    conf = folder / "slurm.conf"
    conf.write_text(f"ClusterName=c # a cluster\nInclude more.conf\nPrologFlags=Alloc,Contain\n{NODES}{more}")
    return conf


def test_slurm_s_files_are_read_through_their_includes(tmp_path: Path) -> None:
    conf = slurm_files(tmp_path)
    side = inspect_slurm_files(conf)
    assert (side.prolog, side.epilog, side.prolog_at_alloc) == (f"{tmp_path}/prolog",) * 2 + (True,)
    assert (side.spank, side.spank_required) == (f"{tmp_path}/energy.so", False)
    copy = f"{tmp_path}/run/policies"
    missing = f"is missing, and there is no copy {copy}"
    assert (side.policy_file, side.policy_file_fault) == (f"{tmp_path}/policies", missing)
    published = PublishedPolicies("senergy-policies 1\n", 1.0)
    for now, fault in ((time.time() - 5000, "is out of date"), (time.time(), "")):
        update_copy(Path(copy), lambda: published, lambda now=now: now)  # type: ignore[misc]
        side = inspect_slurm_files(conf)
        assert (side.policy_file, side.policy_file_fault) == (copy, fault)
    assert side.faults == ()
    assert [line.plugin for line in conf_files.plugstack_lines(conf, {})] == [
        f"{tmp_path}/energy.so",
        "other.so",
    ]


def faults(conf: Path) -> list[tuple[str, str, FileUse]]:
    return [
        (Path(fault.path).name, fault.why, fault.use) for fault in inspect_slurm_files(conf, ["n1"]).faults
    ]


def test_a_prolog_that_cannot_be_run_is_found(tmp_path: Path) -> None:
    expected = [("prolog", "is not executable", use) for use in (FileUse.PROLOG, FileUse.EPILOG)]
    assert faults(slurm_files(tmp_path, prolog_mode=0o644)) == expected


def test_files_that_others_could_write_or_own_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = slurm_files(tmp_path, prolog_mode=0o775)
    assert faults(conf)[0] == ("prolog", "other users may write it (mode 0775)", FileUse.PROLOG)
    monkeypatch.setattr(slurm_side_module, "TRUSTED_UIDS", {-1})
    why = f"belongs to uid {os.geteuid()}"
    assert ("prolog", why, FileUse.PROLOG) in faults(conf)
    assert ("energy.so", why, FileUse.OPTIONAL_PLUGIN) in faults(conf)


def test_missing_files_are_found_wherever_slurm_names_them(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    conf = slurm_files(
        tmp_path, more=f"Prolog={tmp_path}/none\nEpilog={tmp_path}/d/*\nJobSubmitPlugins=lua\n"
    )
    (tmp_path / "energy.so").unlink()
    with (tmp_path / "plugstack.conf").open("a") as file:
        file.write(f"optional {tmp_path}/energy_hooks.so\nrequired /no/such.so\noptional /no/matter.so\n")
    assert faults(conf) == [
        ("none", "is missing", FileUse.PROLOG),
        ("*", "is missing", FileUse.EPILOG),
        ("energy.so", "is missing", FileUse.OPTIONAL_PLUGIN),
        ("energy_hooks.so", "is missing", FileUse.OPTIONAL_PLUGIN),
        ("such.so", "is missing", FileUse.REQUIRED_PLUGIN),
        ("job_submit.lua", "is missing", FileUse.JOB_SUBMIT),
    ]


def test_programs_of_a_directory_are_found_by_their_pattern(tmp_path: Path) -> None:
    directory = tmp_path / "home-of-senergy" / "prolog.d"  # a name of ours above makes no program ours
    directory.mkdir(parents=True)
    for name, text in (("10-site", "#!/bin/sh\n"), ("50-hook", "#!/bin/sh\nexec senergy-hook begin\n")):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"Prolog={directory}/*\nEpilog={directory}/*\n")
    side = inspect_slurm_files(conf)
    assert (side.prolog, side.epilog, side.faults) == (f"{directory}/50-hook",) * 2 + ((),)


SHIPPED_SCRIPT = Path(__file__).resolve().parents[2] / "prolog_epilog" / "job_submit.lua"


@pytest.mark.parametrize(
    ("script", "module", "expected"),
    [
        (SHIPPED_SCRIPT.read_text(), True, []),
        (SHIPPED_SCRIPT.read_text(), False, [("senergy_submit.lua", "is missing", FileUse.CHECK_MODULE)]),
        (
            'package.path = "/usr/local/lib/slurm-energy/?.lua"\nrequire("senergy_submit")\n',
            True,
            [("job_submit.lua", "loads senergy_submit without pcall", FileUse.JOB_SUBMIT)],
        ),
        ("-- require('senergy_submit') once\n", False, []),
    ],
)
def test_job_submit_must_start_without_our_module(
    script: str, module: bool, expected: list[tuple[str, str, FileUse]], tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("JobSubmitPlugins=all_partitions,lua\n")
    library = tmp_path / "lib"
    library.mkdir()
    (tmp_path / "job_submit.lua").write_text(script.replace("/usr/local/lib/slurm-energy", str(library)))
    if module:
        (library / "senergy_submit.lua").write_text("return {}\n")
    assert faults(conf) == expected


@pytest.mark.parametrize(
    ("names", "compute", "controller"),
    [
        (["n1"], True, False),
        (["n5"], False, False),
        (["h1"], True, False),
        (["alias"], True, False),
        (["ctl"], False, True),
        (["ctl", "n2"], True, True),
    ],
)
def test_slurm_conf_says_what_a_host_is(
    names: list[str], compute: bool, controller: bool, tmp_path: Path
) -> None:
    side = inspect_slurm_files(slurm_files(tmp_path, more="SlurmctldHost=ctl(10.0.0.1)\n"), names)
    assert (side.is_compute_node, side.is_controller) == (compute, controller)


def test_a_node_that_may_join_without_a_line_counts_as_compute_node(tmp_path: Path) -> None:
    conf = slurm_files(tmp_path, more="SlurmctldHost=ctl\nMaxNodeCount=100\n")
    assert inspect_slurm_files(conf, ["cloud7"]).is_compute_node is None
    assert inspect_slurm_files(conf, ["ctl"]).is_compute_node is False


def test_a_controller_needs_no_agent_and_no_counters() -> None:
    slurm = dataclasses.replace(WELL.slurm, is_compute_node=False, is_controller=True, prolog="", epilog="")
    found = dataclasses.replace(WELL, slurm=slurm, agent="no such file", counters=(), knobs=())
    checks = diagnosis.diagnose(found)
    assert diagnosis.is_healthy(checks), report.faults(checks)
    assert states(found)["agent"] is CheckState.ABSENT
    assert "energy cpu" not in states(found)
    assert {check.name: check.finding for check in checks}["role"] == "controller"
    faulty = FileFault("/p", "is missing", "do", FileUse.PROLOG)  # slurmd's matter, and there is none
    assert diagnosis.is_healthy(
        diagnosis.diagnose(dataclasses.replace(found, slurm=dataclasses.replace(slurm, faults=(faulty,))))
    )


def write_plugin(path: Path, version: str, export: str = "plugin_version") -> None:
    """Compile a shared object that looks like a SPANK plugin for a given version of Slurm.

    The object exports the version as the macro of Slurm does.
    """
    source = path.with_suffix(".c")
    source.write_text(f'const char plugin_type[] = "spank"; const unsigned int {export} = {version};\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source], check=True, timeout=60)


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0x160508", ""),
        ("0x160501", ""),
        ("0x180b05", "was built for Slurm 24.11, installed is 22.05"),
    ],
)
def test_a_plugin_for_another_series_is_found(version: str, why: str, tmp_path: Path) -> None:
    conf = slurm_files(tmp_path)
    (tmp_path / "slurm").mkdir()
    write_plugin(tmp_path / "slurm" / "auth_none.so", "0x160508")
    write_plugin(tmp_path / "energy.so", version)
    conf.write_text(conf.read_text() + f"PluginDir={tmp_path}/slurm\n")
    assert faults(conf) == ([("energy.so", why, FileUse.OPTIONAL_PLUGIN)] if why else [])
    assert inspect_slurm_files(conf).release == "22.05.8"


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_the_plugin_for_the_order_must_be_there_and_fit_exactly(tmp_path: Path) -> None:
    conf = slurm_files(tmp_path, more="PrioritySiteFactorPlugin=site_factor/energy\n")
    (tmp_path / "slurm").mkdir()
    write_plugin(tmp_path / "slurm" / "auth_none.so", "0x160508")
    conf.write_text(conf.read_text() + f"PluginDir={tmp_path}/slurm:{tmp_path}\n")
    assert faults(conf) == [("site_factor_energy.so", "is missing", FileUse.SITE_FACTOR)]
    write_plugin(tmp_path / "site_factor_energy.so", "0x160507")
    why = "was built for Slurm 22.05.7, installed is 22.05.8"
    assert faults(conf) == [("site_factor_energy.so", why, FileUse.SITE_FACTOR)]
    write_plugin(tmp_path / "site_factor_energy.so", "0x160508")
    assert faults(conf) == []


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_files_that_are_no_plugins_have_no_release(tmp_path: Path) -> None:
    plugin = tmp_path / "x.so"
    write_plugin(plugin, "1", export="plugin_versions")
    assert plugin_release(plugin) is None
    write_plugin(plugin, "0x1a0505")
    assert plugin_release(plugin) == (26, 5, 5)
    data = plugin.read_bytes()
    for length in range(0, len(data), 97):
        plugin.write_bytes(data[:length])
        plugin_release(plugin)
    plugin.write_text("no plugin")
    assert plugin_release(plugin) is None


def test_a_library_of_gpus_that_cannot_be_opened_is_a_fault_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> NvmlLibrary:
        raise DeviceError("NVML", "NVML Shared Library Not Found")

    monkeypatch.setattr(NvmlLibrary, "open", refuse)
    tree = Tree(tmp_path).cpus(2)
    devices = discover(tmp_path)
    assert not any("NVML" in note for note in devices.notes)  # no NVIDIA device: nothing to say
    assert not devices.unusable
    devices.close()
    tree.put("dev/nvidiactl", "")
    found = inspection.inspect(None, lambda _: AGENT, lambda _: {}, tmp_path)
    assert "NVML: NVML Shared Library Not Found: NVIDIA GPUs are neither measured nor set" in found.notes
    (check,) = [check for check in diagnosis.diagnose(found) if check.name == "interface NVML"]
    assert check.state is CheckState.DEGRADED
    assert "NVML Shared Library Not Found" in check.finding and check.cost and check.fix


def test_an_include_of_itself_ends(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("include slurm.conf\nProlog=/x\n")
    assert "/x" in conf_files.read_settings(conf)["prolog"]


@pytest.fixture
def without_daemons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    def nobody(*_: Any) -> dict[str, Any]:
        raise UnavailableError("agent", "No such file or directory")

    monkeypatch.setattr(agent_socket, "ask_agent", nobody)
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
    assert "senergy setup node" in text
    assert "is degraded:" in text
    assert main(["doctor", "--quiet"]) == 1
    assert all(line.startswith(("failed", "degraded")) for line in capsys.readouterr().out.splitlines())


def test_every_fault_of_the_configuration_is_a_line(
    without_daemons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = without_daemons / "energy.toml"
    bad.write_text('[agent]\nsampling = 3\n[defaults]\npolicy = "cap"\n[node_power]\nbmc_user = "a"\n')
    assert main(["doctor", "--quiet", "--config", str(bad)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "configuration" in line]
    words = [("failed", ":2: "), ("failed", ":4: defaults.policy"), ("degraded", ":6: node_power.bmc_user")]
    for line, (state, place) in zip(lines, words, strict=True):
        assert line.startswith(state) and f"{bad}{place}" in line


def test_a_foreign_cluster_name_and_a_missing_prolog_are_faults_of_the_command_too(
    without_daemons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (without_daemons / "none.conf").write_text(
        "ClusterName=right\nProlog=/no/such/prolog\nPrologFlags=Alloc\n"
    )
    config = without_daemons / "energy.toml"
    config.write_text('[cluster]\nname = "wrong"\n')
    assert main(["doctor", "--quiet", "--config", str(config)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("ClusterName" in line and 'name = "right"' in line for line in lines)
    assert any(line.startswith("failed: Prolog file: /no/such/prolog is missing") for line in lines)


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
    assert "sampling" in check["finding"]


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "ok"), ({"present": False, "seen_s": 99.0}, "degraded"), ({"ready": False}, "degraded")],
)
def test_a_controller_is_told_whether_another_one_can_take_over(changes: dict[str, Any], state: str) -> None:
    active = {"name": "http://a", "role": "active", "present": True, "seen_s": 1.0, "ready": True}
    active |= {"beside_slurmctld": None, "version": "0.2.0"}
    passive = active | {"name": "http://b", "role": "passive"} | changes
    answer = {
        "version": WELL.version,
        "lease": {"token": 1, "expires_s": 9.0, "controllers": [active, passive]},
    }
    slurm = dataclasses.replace(WELL.slurm, is_controller=True)
    findings = dataclasses.replace(WELL, controller=answer, slurm=slurm)
    (check,) = [one for one in diagnosis.diagnose(findings) if one.name == "takeover"]
    assert check.state == state and "http://b" in check.finding
    assert not [
        one
        for one in diagnosis.diagnose(dataclasses.replace(findings, slurm=WELL.slurm))
        if one.name == "takeover"
    ]
