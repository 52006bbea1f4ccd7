"""Inspection of a host for `senergy doctor`: devices, daemons, files.

The inspection changes nothing, and does not evaluate the findings.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurm_energy import __version__
from slurm_energy.config import Config
from slurm_energy.config.findings import Finding
from slurm_energy.devices.cpu.resctrl import find_support
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.driver import DeviceError, EnergyCounter, Knob
from slurm_energy.devices.hwmon import chip_names
from slurm_energy.devices.node.power_options import node_power_options
from slurm_energy.devices.polled_sensor import NO_READING_YET
from slurm_energy.devices.sampling_interval import max_sampling_interval_s
from slurm_energy.devices.sources import NodePowerOptions
from slurm_energy.devices.sysfs import read_optional
from slurm_energy.doctor import interface_catalogue
from slurm_energy.doctor.findings import CounterFinding, HostFindings, InterfaceFinding, KnobFinding
from slurm_energy.doctor.gpu_order_check import inspect_gpu_order
from slurm_energy.doctor.slurm_files import inspect_slurm_files
from slurm_energy.doctor.tuning_check import has_numpy
from slurm_energy.errors import ConfigError, EnergyError
from slurm_energy.quantities import counter_delta
from slurm_energy.slurm import conf_files, munge
from slurm_energy.validation import check_file

Ask = Callable[[Config], Mapping[str, Any]]
"""Function that requests a daemon's status, or raises EnergyError if the daemon does not answer."""

_NVIDIA, _AMD = "0x10de", "0x1002"
_OBSERVATION_S, _MAX_WAIT_S = 0.5, 4.0
_ATTEMPTS, _FAST_READING_S = 3, 0.002
_MAX_TIMING_UNCERTAINTY = 0.01
"""Maximum timing uncertainty of the readings, as a fraction of the time between them."""

_AGENT_LINK = "etc/systemd/system/multi-user.target.wants/senergyd.service"
"""Link that `systemctl enable senergyd` creates."""


def inspect(
    config_argument: Path | str | None,
    ask_agent: Ask,
    ask_controller: Ask,
    root: Path = Path("/"),
    slurm_conf: Path | None = None,
) -> HostFindings:
    """Inspect this host for `senergy doctor` and return what was found.

    Args:
        config_argument: value of --config; None means the default path. A faulty file is reported as a
            finding.
        ask_agent: function that requests the agent's status.
        ask_controller: function that requests the controller's status.
        root: directory that contains sys, proc, dev and etc.
        slurm_conf: path of slurm.conf; None means to search the usual paths.
    """
    config, config_error, config_findings = _config(config_argument)
    agent = _answer(ask_agent, config)
    before = time.time()
    controller = _answer(ask_controller, config)
    after = time.time()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    meter, meter_error = _meter(config, node)
    devices = discover(root, meter)
    try:
        conf = slurm_conf or conf_files.locate_slurm_conf()
        gpu_order, gpu_order_error = inspect_gpu_order(conf, _reported_name(agent) or node, devices.hardware)
        return HostFindings(
            node=node,
            version=__version__,
            time=after,
            root=os.geteuid() == 0,
            hardware=devices.hardware,
            counters=tuple(_counters(devices)),
            knobs=tuple(_knob(knob) for knob in devices.knobs.values()),
            interfaces=tuple(interfaces(root, devices)),
            throttles=tuple(sensor.component for sensor in devices.throttle_sensors),
            notes=devices.notes,
            virtual=_is_virtual(root),
            config_path=str(config.path or ""),
            config_error=config_error,
            config_findings=config_findings,
            meter_error=meter_error,
            sampling_interval_s=min(
                1 / config.agent.sampling_hz, max_sampling_interval_s(_all_counters(devices))
            ),
            tuning=config.tuning,
            budget_mode=config.budget.mode,
            resctrl=find_support(root),
            resctrl_mode=config.agent.resctrl,
            has_numpy=has_numpy(),
            spool_limit_mb=config.agent.spool_limit_mb,
            state_free_mb=_free_mb(config.agent.state_dir),
            agent_socket=str(config.agent.socket),
            is_agent_enabled=(root / _AGENT_LINK).is_symlink(),
            agent=agent,
            controller_url=str(config.cluster.controller_url),
            controller=controller,
            clock_offset_s=_offset_s(controller, (before + after) / 2),
            clock_uncertainty_s=(after - before) / 2,
            munge_error=_munge_error(config),
            gpu_order=gpu_order,
            gpu_order_error=gpu_order_error,
            slurm=inspect_slurm_files(conf),
        )
    finally:
        devices.close()


def _reported_name(agent: Mapping[str, Any] | str) -> str:
    """Return Slurm's name of this node as the agent reports it; empty if the agent does not answer."""
    name = "" if isinstance(agent, str) else agent.get("node")
    return name if isinstance(name, str) else ""


def interfaces(root: Path, used: NodeDevices | None = None) -> list[InterfaceFinding]:
    """Return one finding for each hardware interface that slurm-energy supports.

    Interfaces that this node lacks are included.

    Args:
        root: directory that contains sys, proc, dev and etc.
        used: the devices of this node that are in use; None means that no device is in use.
    """
    sources = {counter.source for counter in _all_counters(used)} if used else set()
    knob_names = {knob.name for knob in used.knobs.values()} if used else set()
    expected = _expected(root)
    return [
        InterfaceFinding(
            interface.name,
            interface.present(root),
            interface_catalogue.is_used(interface, sources, knob_names),
            interface.name in expected,
            *_REMEDIES.get(interface.name, ("", "")),
            used.unusable.get(interface.name, "") if used else "",
        )
        for interface in interface_catalogue.INTERFACES
    ]


_REMEDIES = {
    "cpufreq": (
        "no policy can set CPU frequencies",
        "enable P-states (CPPC) in the firmware; modprobe acpi-cpufreq",
    ),
    "powercap": (
        "the energy of processors is unknown (null), and no power limit can be set",
        "modprobe intel_rapl_msr",
    ),
    "NVML": (
        "NVIDIA GPUs are neither measured nor set",
        "install the NVIDIA driver (libnvidia-ml.so.1); modprobe nvidia",
    ),
    "AMD SMI": ("AMD GPUs are neither measured nor set", "modprobe amdgpu; install amd-smi-lib"),
}
"""Cost and remedy of interfaces that can be absent although the hardware is present."""


def _expected(root: Path) -> set[str]:
    """Return the names of the interfaces that the host should have according to its hardware."""
    cpuinfo = read_optional(root / "proc/cpuinfo") or ""
    vendors = _display_vendors(root / "sys")
    expected = set()
    if not _is_virtual(root):
        expected.add("cpufreq")
        if "GenuineIntel" in cpuinfo or "AuthenticAMD" in cpuinfo:
            expected.add("powercap")
    if _NVIDIA in vendors:
        expected.add("NVML")
    if _AMD in vendors and "amdgpu" not in chip_names(root):
        expected.add("AMD SMI")
    return expected


def _all_counters(devices: NodeDevices) -> list[EnergyCounter]:
    return [*devices.counters, *devices.node_counters]


def _counters(devices: NodeDevices) -> list[CounterFinding]:
    """Return one finding per energy counter.

    Each counter is read at least twice, 0.5 s or more apart, to compute its power. The function waits up to 4
    s for the first reading of sensors that are polled in threads.
    """
    counters = _all_counters(devices)
    first: dict[str, _Reading] = {}
    last: dict[str, _Reading] = {}
    errors: dict[str, str] = {}
    started = time.monotonic()
    while True:
        for counter in counters:
            try:
                last[counter.key] = _read(counter)
            except DeviceError as failure:
                errors[counter.key] = failure.why or str(failure)
            else:
                first.setdefault(counter.key, last[counter.key])
                errors.pop(counter.key, None)
        waited_s = time.monotonic() - started
        watched = all(_far_apart(first[key], reading) for key, reading in last.items())
        answered = all(errors[key] != NO_READING_YET for key in errors)
        if waited_s > _MAX_WAIT_S or (watched and answered):
            late = {NO_READING_YET: f"no answer within {waited_s:.0f} s"}
            reasons = {key: late.get(why, why) for key, why in errors.items()}
            return [
                _counter_finding(c, first.get(c.key), last.get(c.key), reasons.get(c.key, ""))
                for c in counters
            ]
        time.sleep(_OBSERVATION_S / 4)


class _Reading(NamedTuple):
    """Reading of an energy counter.

    The exact time of the reading is unknown: it lies between `time_s - uncertainty_s` and `time_s +
    uncertainty_s`.
    """

    time_s: float
    value_uj: int
    uncertainty_s: float


def _read(counter: EnergyCounter) -> _Reading:
    """Read a counter up to three times and return the reading that took the shortest time.

    The time of a slow reading is uncertain, for example if the machine stalled during the reading.

    Raises:
        DeviceError: the counter cannot be read now.
    """
    quickest: _Reading | None = None
    for _ in range(_ATTEMPTS):
        before = time.monotonic()
        value_uj = counter.read()
        uncertainty_s = (time.monotonic() - before) / 2
        if quickest is None or uncertainty_s < quickest.uncertainty_s:
            quickest = _Reading(before + uncertainty_s, value_uj, uncertainty_s)
        if quickest.uncertainty_s <= _FAST_READING_S / 2:
            break
    assert quickest is not None
    return quickest


def _far_apart(first: _Reading, last: _Reading) -> bool:
    apart_s = last.time_s - first.time_s
    return (
        apart_s >= _OBSERVATION_S
        and first.uncertainty_s + last.uncertainty_s <= _MAX_TIMING_UNCERTAINTY * apart_s
    )


def _counter_finding(
    counter: EnergyCounter, first: _Reading | None, last: _Reading | None, error: str
) -> CounterFinding:
    watts = None
    if first is not None and last is not None and last.time_s > first.time_s and not error:
        moved_uj = last.value_uj - first.value_uj
        if counter.range_uj is not None:
            moved_uj = counter_delta(first.value_uj, last.value_uj, counter.range_uj)
        watts = moved_uj / 1e6 / (last.time_s - first.time_s)
    return CounterFinding(
        key=counter.key,
        component=counter.component,
        source=counter.source,
        quality=str(counter.quality),
        energy_uj=last.value_uj if last is not None and not error else None,
        error=error,
        wraps_after_s=None if counter.range_uj is None else counter.range_uj / 1e6 / counter.max_watts,
        watts=watts,
    )


def _knob(knob: Knob) -> KnobFinding:
    try:
        value: str | None = knob.format_value(knob.read())
    except DeviceError:
        value = None
    return KnobFinding(knob.key, knob.name, value, _writable(knob))


def _writable(knob: Knob) -> bool:
    """Return whether this process may write a knob. Knobs of vendor libraries require root."""
    files = knob.files()
    return all(os.access(path, os.W_OK) for path in files) if files else os.geteuid() == 0


def _is_virtual(root: Path) -> bool:
    """Return whether the host is a virtual machine.

    On x86, the flags of a virtual machine's processor contain `hypervisor`. On other architectures the
    result is False.
    """
    for line in (read_optional(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return "hypervisor" in value.split()
    return False


def _display_vendors(system: Path) -> set[str]:
    """Return the PCI vendor ids of display and accelerator devices (PCI class 03 and 12), such as `0x10de`.

    Args:
        system: the directory /sys.
    """
    vendors = set()
    for path in system.glob("bus/pci/devices/*/class"):
        if (read_optional(path) or "")[:4] in ("0x03", "0x12"):
            vendors.add(read_optional(path.with_name("vendor")) or "")
    return vendors


def _config(argument: Path | str | None) -> tuple[Config, str, tuple[Finding, ...]]:
    """Return the configuration, the reason why its file cannot be read, and the file's errors and warnings.

    If the configuration has errors, the defaults are returned instead, because no daemon uses a file with
    errors.
    """
    try:
        checked = check_file(argument)
    except ConfigError as error:
        return Config(), str(error), ()
    return Config() if checked.errors else checked.config.for_this_node(), "", checked.findings


def _meter(config: Config, node: str) -> tuple[NodePowerOptions | None, str]:
    """Return the site's options for measuring node power, and an error message.

    The options are read from the configuration section for node power. They are None if this section has
    an error. They are also None if the process is not root, because only root may use the BMC. The
    message is empty if the section has no error.
    """
    if os.geteuid() != 0:
        return None, ""
    try:
        return node_power_options(config.node_power, node), ""
    except ConfigError as error:
        return None, str(error)


def _answer(ask: Ask, config: Config) -> Mapping[str, Any] | str:
    try:
        return ask(config)
    except EnergyError as error:
        return str(error)


def _offset_s(controller: Mapping[str, Any] | str, now: float) -> float | None:
    """Return how many seconds this host's clock is ahead of the controller's clock; None if unknown.

    The controller's time is the sum of its start time and its uptime.

    Args:
        controller: the controller's response to `GET /v1/status`, or text that says why there is no response.
        now: Unix time of this host when the controller responded.
    """
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
