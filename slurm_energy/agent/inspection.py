"""Looks at a node for `senergy doctor`: devices, daemons, files. Changes nothing; judges nothing."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_energy import __version__
from slurm_energy import config as configuration
from slurm_energy.config import Config
from slurm_energy.devices.discovery import Devices, discover
from slurm_energy.devices.interface import DeviceError, EnergyCounter, Knob
from slurm_energy.devices.sysfs import read_optional
from slurm_energy.errors import ConfigError, EnergyError
from slurm_energy.policies import check_policies
from slurm_energy.reports.findings import CounterSeen, Findings, Interface, KnobSeen, SlurmSide
from slurm_energy.slurm import conffile, munge

Ask = Callable[[Config], Mapping[str, Any]]
"""Asks a daemon for its status; raises EnergyError if it does not answer."""

_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"


def inspect(
    config_argument: Path | str | None,
    ask_agent: Ask,
    ask_controller: Ask,
    root: Path = Path("/"),
    slurm_conf: Path | None = None,
) -> Findings:
    """Return what there is on this node.

    Args:
        config_argument: --config as given; a faulty file is a finding.
        ask_agent: how the agent is reached.
        ask_controller: how the controller is reached.
        root: where /sys, /proc and /dev are found.
        slurm_conf: None looks in the usual places.
    """
    config, config_error = _config(config_argument)
    agent = _answer(ask_agent, config)
    before = time.time()
    controller = _answer(ask_controller, config)
    after = time.time()
    devices = discover(root)
    try:
        return Findings(
            node=os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
            version=__version__,
            time=after,
            root=os.geteuid() == 0,
            hardware=devices.hardware,
            counters=tuple(map(_counter, _all_counters(devices))),
            knobs=tuple(_knob(knob) for knob in devices.knobs.values()),
            interfaces=tuple(interfaces(root)),
            throttles=tuple(sensor.component for sensor in devices.throttles),
            notes=devices.notes,
            virtual=_is_virtual(root),
            config_path=str(config.path or ""),
            config_error=config_error,
            sampling_hz=config.agent.sampling_hz,
            spool_limit_mb=config.agent.spool_limit_mb,
            state_free_mb=_free_mb(config.agent.state_dir),
            agent_socket=str(config.agent.socket),
            agent=agent,
            controller_url=config.cluster.controller_url,
            controller=controller,
            clock_offset_s=_offset_s(controller, (before + after) / 2),
            clock_uncertainty_s=(after - before) / 2,
            munge_error=_munge_error(config),
            slurm=slurm_side(slurm_conf or conffile.locate()),
        )
    finally:
        devices.close()


def interfaces(root: Path) -> list[Interface]:
    """Return every hardware interface that we know, and whether this node's kernel shows it."""
    system = root / "sys"
    cpuinfo = read_optional(root / "proc/cpuinfo") or ""
    bare = not _is_virtual(root)
    x86 = "GenuineIntel" in cpuinfo or "AuthenticAMD" in cpuinfo
    vendors = _display_vendors(system)
    hwmon = {read_optional(path) or "" for path in system.glob("class/hwmon/hwmon*/name")}
    powercap = any(system.glob("class/powercap/intel-rapl*"))
    cpu_cost = "the energy of processors is unknown (null), and they cannot be capped"
    return [
        Interface(
            "cpufreq",
            any(system.glob("devices/system/cpu/cpufreq/policy*")),
            "cpufreq.",
            bare,
            "no policy can set CPU frequencies",
            "enable P-states (CPPC) in the firmware; modprobe acpi-cpufreq",
        ),
        Interface("powercap", powercap, "powercap", bare and x86, cpu_cost, "modprobe intel_rapl_msr"),
        Interface(
            "perf power events", (system / "bus/event_source/devices/power").exists(), "perf", False, "", ""
        ),
        Interface("hwmon amd_energy", "amd_energy" in hwmon, "hwmon:amd_energy", False, "", ""),
        Interface("hwmon power meter", "power_meter" in hwmon, "hwmon:power_meter", False, "", ""),
        Interface(
            "AMD HSMP", (root / "dev/hsmp").exists() or "amd_hsmp_hwmon" in hwmon, "hsmp", False, "", ""
        ),
        Interface(
            "NVML",
            (root / "dev/nvidiactl").exists(),
            "nvml",
            _NVIDIA in vendors,
            "NVIDIA GPUs are neither measured nor set",
            "install the NVIDIA driver (libnvidia-ml.so.1); modprobe nvidia",
        ),
        Interface(
            "AMD SMI",
            (root / "dev/kfd").exists(),
            "amdsmi",
            _AMD in vendors and "amdgpu" not in hwmon,
            "AMD GPUs are neither measured nor set",
            "modprobe amdgpu; install amd-smi-lib",
        ),
        Interface("Intel GPU", "i915" in hwmon or "xe" in hwmon, "hwmon:i915", False, "", ""),
        Interface("Cray pm_counters", (system / "cray/pm_counters").exists(), "pm_counters", False, "", ""),
        Interface("IPMI", _has_ipmi(root), "ipmi", False, "", ""),
    ]


def _all_counters(devices: Devices) -> list[EnergyCounter]:
    """Return counters of components and, where discovery tells them apart, of the whole node."""
    return [*devices.counters, *getattr(devices, "node_counters", ())]


def _counter(counter: EnergyCounter) -> CounterSeen:
    value, error = None, ""
    try:
        value = counter.read()
    except DeviceError as failure:
        error = failure.why or str(failure)
    wraps_s = None if counter.range_uj is None else counter.range_uj / 1e6 / counter.most_watts
    quality = str(getattr(counter, "quality", "measured"))
    return CounterSeen(counter.key, counter.component, counter.source, quality, value, error, wraps_s)


def _knob(knob: Knob) -> KnobSeen:
    try:
        value: str | None = knob.shown(knob.read())
    except DeviceError:
        value = None
    return KnobSeen(knob.key, knob.kind, value, _writable(knob))


def _writable(knob: Knob) -> bool:
    """Return whether this process may write; drivers without a file want root."""
    path = getattr(knob, "path", None)
    return os.access(path, os.W_OK) if isinstance(path, Path) else os.geteuid() == 0


def _is_virtual(root: Path) -> bool:
    """Return whether the processor says that a hypervisor runs it (x86 only)."""
    for line in (read_optional(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return "hypervisor" in value.split()
    return False


def _display_vendors(system: Path) -> set[str]:
    """Return the vendors of display and accelerator devices (PCI class 03 and 12)."""
    found = set()
    for path in system.glob("bus/pci/devices/*/class"):
        if (read_optional(path) or "")[:4] in ("0x03", "0x12"):
            found.add(read_optional(path.with_name("vendor")) or "")
    return found


def _has_ipmi(root: Path) -> bool:
    return any((root / "dev" / name).exists() for name in ("ipmi0", "ipmi/0", "ipmidev/0"))


def _config(argument: Path | str | None) -> tuple[Config, str]:
    """Return the configuration and what is wrong with it; defaults then."""
    try:
        found = configuration.load(argument, trusted=os.geteuid() == 0)
        check_policies(found)
    except ConfigError as error:
        return Config(), str(error)
    return found, ""


def _answer(ask: Ask, config: Config) -> Mapping[str, Any] | str:
    try:
        return ask(config)
    except EnergyError as error:
        return str(error)


def _offset_s(controller: Mapping[str, Any] | str, now: float) -> float | None:
    """Return how far this clock is ahead; the controller's time is its start plus how long it is up."""
    if isinstance(controller, str):
        return None
    started, up_s = controller.get("started"), controller.get("uptime_s")
    if not isinstance(started, (int, float)) or not isinstance(up_s, (int, float)):
        return None
    return now - (started + up_s)


def _free_mb(folder: Path) -> float | None:
    try:
        return shutil.disk_usage(folder).free / 1e6
    except OSError:
        return None


def _munge_error(config: Config) -> str:
    try:
        munge.decode(
            munge.encode(b"senergy doctor", config.cluster.munge_socket), config.cluster.munge_socket
        )
    except EnergyError as error:
        return str(error)
    return ""


def slurm_side(conf: Path | None) -> SlurmSide:
    """Return what Slurm's files say of us; `conf` is slurm.conf, None if there is none."""
    if conf is None:
        return SlurmSide()
    try:
        found = conffile.settings(conf)
    except OSError as error:
        return SlurmSide(str(conf), error.strerror or str(error))
    prolog, epilog = (_ours(found.get(key, [])) for key in ("prolog", "epilog"))
    flags = ",".join(found.get("prologflags", [])).lower().split(",")
    spank = next((s for s in conffile.spank_lines(conf, found) if Path(s.plugin).name == "energy.so"), None)
    named = [*filter(None, (prolog, epilog)), *([spank.plugin] if spank and spank.plugin[0] == "/" else [])]
    arguments = dict(word.partition("=")[::2] for word in spank.arguments) if spank else {}
    policies = arguments.get("policy_file", "")
    return SlurmSide(
        conf=str(conf),
        prolog=prolog,
        epilog=epilog,
        prolog_at_alloc="alloc" in flags,
        broken=tuple(name for name in named if not _usable(Path(name))),
        spank=spank.plugin if spank else "",
        spank_required=spank.required if spank else False,
        policy_file=policies,
        policy_file_missing=bool(policies) and not Path(policies).exists(),
    )


def _ours(programs: list[str]) -> str:
    """Return the program that calls our hook, or that is missing and so may be ours."""
    for program in programs:
        try:
            text = Path(program).read_bytes()
        except OSError:
            return program
        if b"senergy" in text:
            return program
    return ""


def _usable(path: Path) -> bool:
    return os.access(path, os.R_OK if path.suffix == ".so" else os.X_OK)
