"""Judges what was found on a node: each check's verdict, what its lack costs, and the remedy.

Pure: `slurm_energy.doctor.inspection` looks, `report` prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_energy.config.findings import errors, warnings
from slurm_energy.doctor.findings import CounterFinding, HostFindings, KnobFinding
from slurm_energy.doctor.slurm_checks import slurm_checks
from slurm_energy.doctor.verdict import CheckResult, CheckState

CLOCK_TOLERANCE_S = 2.0
_SAFE_PART_OF_RANGE = 0.9
_FULL_SPOOL = 0.8
_MOST_NAMED = 6
_KERNEL_LOG = "look for errors of the driver: journalctl -k   (or dmesg)"
_DOUBTFUL_CONFIG = "the daemons start, but do not do what the file seems to want"
_NO_CONFIG = "daemons do not start, or go on with what they read before"
NOT_HERE = "not on this node"


def diagnose(found: HostFindings) -> list[CheckResult]:
    """Return the checks in the order of the report."""
    checks = [_role(found)]
    if _is_measured(found):
        checks += [*_energy(found), *_interfaces(found), *_knobs(found), _sampling(found)]
    checks += [*_config(found), *_meter(found), *_agent(found), _munge(found), *_controller(found)]
    return [*checks, *slurm_checks(found.slurm)]


def is_healthy(checks: Iterable[CheckResult]) -> bool:
    """Return whether nothing needs anybody: the exit code for monitoring."""
    return not any(check.state in (CheckState.DEGRADED, CheckState.FAILED) for check in checks)


def _role(found: HostFindings) -> CheckResult:
    """Say what this host is for Slurm, which decides what it must have."""
    slurm = found.slurm
    if slurm.is_compute_node is None:
        return CheckResult(
            "role", CheckState.OK, "not in slurm.conf, or there is none; checked as a compute node"
        )
    roles = ["controller"] * slurm.is_controller + ["compute node"] * slurm.is_compute_node
    return CheckResult(
        "role", CheckState.OK, " and ".join(roles) or "login node: neither slurmctld's host nor a node"
    )


def _is_measured(found: HostFindings) -> bool:
    """Return whether this host should have an agent, or has one."""
    return found.slurm.is_compute_node is not False or not isinstance(found.agent, str)


def _energy(found: HostFindings) -> list[CheckResult]:
    """Return a check per component: is its energy known, and how."""
    names = dict.fromkeys(["cpu", "dram", *(f"gpu[{gpu.index}]" for gpu in found.hardware.gpus)])
    names |= dict.fromkeys(counter.component for counter in found.counters)
    names["node"] = None
    return [_component(name, found) for name in names]


def _component(name: str, found: HostFindings) -> CheckResult:
    own = [counter for counter in found.counters if counter.component == name]
    label = f"energy {name}"
    if not own:
        return CheckResult(label, *_absent_component(name, found))
    bad = [counter for counter in own if counter.energy_uj is None]
    what = ", ".join(dict.fromkeys(f"{counter.source}" for counter in own))
    what += f", {_number(len(own), 'counter')}"
    if bad and not found.root and _agent_has(found, bad):
        return CheckResult(
            label, CheckState.OK, f"{what}, readable for the agent only, as the kernel wants it"
        )
    if bad:
        reasons = "; ".join(dict.fromkeys(counter.error for counter in bad))
        cost = f"the energy of {name} is unknown (null) in every record"
        fix = (
            "run `sudo senergy doctor`: counters are root's"
            if not found.root
            else _ask_bmc(own) or _KERNEL_LOG
        )
        return CheckResult(label, CheckState.DEGRADED, f"{what}, {len(bad)} unreadable: {reasons}", cost, fix)
    if any(counter.quality == "modelled" for counter in own):
        what += f", {_watts(own)}"
        return CheckResult(
            label, CheckState.OK, f"{what}, modelled", "a model's error instead of a counter's"
        )
    what += f", {_watts(own)}"
    if still := [counter.key for counter in own if counter.energy_uj == 0 and counter.watts == 0]:
        cost = f"the energy of {name} is 0 in every record, as if it used none"
        return CheckResult(
            label, CheckState.DEGRADED, f"{what}; at 0 and does not move: {_named(still)}", cost, _KERNEL_LOG
        )
    return CheckResult(label, CheckState.OK, what)


def _ask_bmc(counters: Iterable[CounterFinding]) -> str:
    """Return how to find out why a management controller does not answer; empty for other sources."""
    sources = {counter.source for counter in counters}
    if "ipmi:dcmi" in sources:
        return "ipmitool dcmi power reading   (over the network: -I lanplus -H ADDRESS, see node_power)"
    return "curl -k ADDRESS/redfish/v1   (node_power.bmc)" if "redfish:power" in sources else ""


def _watts(counters: Iterable[CounterFinding]) -> str:
    listed = [counter.watts for counter in counters]
    known = [watts for watts in listed if watts is not None]
    return f"{sum(known):.1f} W" if known and len(known) == len(listed) else "power not known"


def _agent_has(found: HostFindings, counters: Iterable[CounterFinding]) -> bool:
    if isinstance(found.agent, str):
        return False
    devices = found.agent.get("devices")
    known = devices.get("counters") if isinstance(devices, Mapping) else None
    return isinstance(known, list) and all(counter.key in known for counter in counters)


def _absent_component(name: str, found: HostFindings) -> tuple[CheckState, str, str, str]:
    if name == "cpu":
        if found.virtual:
            fix = "none inside a virtual machine: measure on the host"
        else:
            fix = "modprobe intel_rapl_msr   (AMD Zen as well)"
        cost = "the energy of processors is unknown (null) in every record"
        return CheckState.DEGRADED, "no counter", cost, fix
    if name == "node":
        cost = "fans, disks, network and power supplies are in no record; jobs are compared without them"
        return CheckState.ABSENT, "no meter of the whole node", cost, ""
    if name == "dram":
        cost = "memory is left out of cpu + dram sums; policies still work"
        return CheckState.ABSENT, "no counter; clients and AMD processors have none", cost, ""
    cost = f"the energy of {name} is unknown (null) in every record"
    return (
        CheckState.DEGRADED,
        "the GPU has no energy counter that can be read",
        cost,
        "nvidia-smi -q -d POWER",
    )


def _interfaces(found: HostFindings) -> list[CheckResult]:
    checks = []
    for interface in found.interfaces:
        name = f"interface {interface.name}"
        if interface.in_use:
            checks.append(CheckResult(name, CheckState.OK, "in use"))
        elif interface.present and interface.reason:
            what = f"present, cannot be used: {interface.reason}"
            checks.append(CheckResult(name, CheckState.DEGRADED, what, interface.cost, interface.fix))
        elif interface.present:
            checks.append(
                CheckResult(
                    name,
                    CheckState.ABSENT,
                    "present, not used: it gives nothing here, or other sources go before it",
                )
            )
        elif interface.expected:
            checks.append(CheckResult(name, CheckState.DEGRADED, "missing", interface.cost, interface.fix))
        else:
            checks.append(CheckResult(name, CheckState.ABSENT, NOT_HERE))
    return checks


def _knobs(found: HostFindings) -> list[CheckResult]:
    checks = []
    for kind in dict.fromkeys(knob.kind for knob in found.knobs):
        own = [knob for knob in found.knobs if knob.kind == kind]
        silent = [knob.key for knob in own if knob.value is None]
        locked = [knob.key for knob in own if not knob.writable]
        what = f"{_number(len(own), 'knob')}, {_values(own)}"
        if silent:
            cost = "policies leave these as they are"
            what += f"; unreadable: {_named(silent)}"
            checks.append(CheckResult(kind, CheckState.DEGRADED, what, cost, _KERNEL_LOG))
        elif locked and found.root:
            cost = "policies cannot set these"
            fix = "is /sys mounted read-only? mount -o remount,rw /sys"
            checks.append(
                CheckResult(kind, CheckState.DEGRADED, f"{what}; not writable: {_named(locked)}", cost, fix)
            )
        else:
            checks.append(CheckResult(kind, CheckState.OK, what))
    if not checks:
        cost = "every policy is `monitor` here: jobs are measured, nothing can be set"
        state = CheckState.ABSENT if found.virtual else CheckState.DEGRADED
        checks.append(
            CheckResult(
                "knobs", state, "none", cost, "modprobe acpi-cpufreq; enable P-states (CPPC) in the firmware"
            )
        )
    return checks


def _values(knobs: Iterable[KnobFinding]) -> str:
    values = dict.fromkeys(knob.value for knob in knobs if knob.value is not None)
    return _named(list(values), ", ") or "no value"


def _sampling(found: HostFindings) -> CheckResult:
    """Tell whether a wrap can be missed between two samples; the agent samples as often as counters need."""
    wraps = [(c.wraps_after_s, c.key) for c in found.counters if c.wraps_after_s is not None]
    interval_s = found.sampling_interval_s
    if not wraps:
        return CheckResult("sampling", CheckState.OK, f"every {interval_s:.3g} s")
    soonest_s, key = min(wraps)
    what = f"every {interval_s:.3g} s; the first to wrap is {key}, after {soonest_s:.3g} s at full power"
    if interval_s <= soonest_s * _SAFE_PART_OF_RANGE:
        return CheckResult("sampling", CheckState.OK, what)
    cost = "a wrap can pass unseen: energy is too low by whole ranges and marked uncertain"
    fix = f"agent.sampling_hz = {math.ceil(1 / (soonest_s * _SAFE_PART_OF_RANGE)):d} or more"
    return CheckResult("sampling", CheckState.DEGRADED, what, cost, fix)


def _config(found: HostFindings) -> list[CheckResult]:
    """Return one check per error and warning of the configuration, or that it is right."""
    fix = "senergy config check"
    if found.config_error:
        return [CheckResult("configuration", CheckState.FAILED, found.config_error, _NO_CONFIG, fix)]
    failed = [
        CheckResult("configuration", CheckState.FAILED, f.text, _NO_CONFIG, fix)
        for f in errors(found.config_findings)
    ]
    doubtful = [
        CheckResult("configuration", CheckState.DEGRADED, f.text, _DOUBTFUL_CONFIG, fix)
        for f in warnings(found.config_findings)
    ]
    return [*failed, *doubtful] or [
        CheckResult("configuration", CheckState.OK, found.config_path or "defaults, no file")
    ]


def _meter(found: HostFindings) -> list[CheckResult]:
    """Tell what is wrong with the site's words about node power; the error says the remedy itself."""
    if not found.meter_error:
        return []
    cost = "the node's power comes from another source, or from none"
    return [CheckResult("node_power", CheckState.DEGRADED, found.meter_error, cost, "senergy config check")]


def _agent(found: HostFindings) -> list[CheckResult]:
    if not _is_measured(found):
        return [CheckResult("agent", CheckState.ABSENT, "none, and none needed: this is no compute node")]
    if isinstance(found.agent, str):
        cost = "no policy is applied and no job is measured on this node"
        what = found.agent
        return [CheckResult("agent", CheckState.FAILED, what, cost, "systemctl start senergyd")]
    answer = found.agent
    checks = [
        CheckResult("agent", CheckState.OK, f"version {answer.get('version', '?')} at {found.agent_socket}")
    ]
    if answer.get("version") != found.version:
        what = f"version {answer.get('version', '?')}, this command is {found.version}"
        cost = "the agent runs the code of another installation than the one looked at"
        checks[0] = CheckResult("agent", CheckState.DEGRADED, what, cost, "systemctl restart senergyd")
    if left := answer.get("unrestored"):
        cost = "jobs start from settings that an earlier job left"
        checks.append(
            CheckResult("settings left", CheckState.DEGRADED, _named(left), cost, "senergyd --restore")
        )
    checks.append(_seen_by_agent(found, answer))
    checks += [_spool(found, answer), *_undelivered(answer)]
    return checks


def _seen_by_agent(found: HostFindings, answer: Mapping[str, Any]) -> CheckResult:
    """Compare with what the agent found when it started: devices may have come later."""
    devices = answer.get("devices")
    known = devices.get("counters") if isinstance(devices, Mapping) else None
    present = {counter.key for counter in found.counters}
    if not isinstance(known, list):
        return CheckResult("agent's devices", CheckState.OK, "not told")
    components = {counter.key for counter in found.counters if counter.component != "node"}
    new, lost = sorted(components.difference(known)), sorted(set(map(str, known)) - present)
    if found.root and new:
        cost = "the agent does not count what appeared after it started"
        return CheckResult(
            "agent's devices", CheckState.DEGRADED, f"new: {_named(new)}", cost, "systemctl restart senergyd"
        )
    if found.root and lost:
        cost = "the energy of these is unknown since they went away"
        return CheckResult("agent's devices", CheckState.DEGRADED, f"gone: {_named(lost)}", cost, _KERNEL_LOG)
    return CheckResult("agent's devices", CheckState.OK, _number(len(known), "counter"))


def _spool(found: HostFindings, answer: Mapping[str, Any]) -> CheckResult:
    count = answer.get("spooled", 0)
    what = f"{_number(count, 'record')} wait for the controller"
    if found.state_free_mb is not None:
        what += f", {found.state_free_mb:.0f} MB free"
        if found.state_free_mb < found.spool_limit_mb * (1 - _FULL_SPOOL):
            cost = "power traces, then records, are lost once the disk is full"
            return CheckResult("spool", CheckState.DEGRADED, what, cost, "make room under agent.state_dir")
    return CheckResult("spool", CheckState.OK, what)


def _undelivered(answer: Mapping[str, Any]) -> list[CheckResult]:
    """Return a check for records that the controller does not take, if there are any."""
    checks = []
    if deferred := answer.get("deferred"):
        cost = "they stay on this node until the controller takes them"
        what = f"{_number(deferred, 'record')} of a newer release, or ahead of the controller's clock"
        checks.append(CheckResult("retried records", CheckState.DEGRADED, what, cost, "upgrade senergyctld"))
    if rejected := answer.get("rejected"):
        what = f"the controller refused {_number(rejected, 'record')}"
        if dropped := answer.get("rejected_dropped"):
            what += f", {dropped} more were dropped for lack of space"
        cost = "these are in no report; they are kept until their space is used up"
        fix = "senergy spool   (names the reasons); then: senergy spool resend"
        checks.append(CheckResult("rejected records", CheckState.DEGRADED, what, cost, fix))
    return checks


def _munge(found: HostFindings) -> CheckResult:
    if found.munge_error:
        cost = "records stay on the node and nobody can ask the controller"
        return CheckResult("munge", CheckState.FAILED, found.munge_error, cost, "systemctl start munge")
    return CheckResult("munge", CheckState.OK, "makes and opens credentials")


def _controller(found: HostFindings) -> list[CheckResult]:
    if isinstance(found.controller, str):
        cost = "records wait in the spools of the nodes until it is back"
        fix = "systemctl start senergyctld   (on the controller)"
        if found.munge_error and found.munge_error in found.controller:
            what, fix = "not asked, since munge does not work", "see munge"
            return [CheckResult("controller", CheckState.DEGRADED, what, cost, fix)]
        if found.slurm.is_controller:
            cost += "; after a restart of the host flags are checked for their form only"
            return [
                CheckResult(
                    "controller", CheckState.FAILED, found.controller, cost, "systemctl start senergyctld"
                )
            ]
        return [CheckResult("controller", CheckState.DEGRADED, found.controller, cost, fix)]
    checks = [CheckResult("controller", CheckState.OK, f"{found.controller_url}")]
    if (version := found.controller.get("version")) != found.version:
        what = f"{found.controller_url} has version {version}, this node {found.version}"
        cost = "the older of the two does not know all fields of the newer"
        checks = [
            CheckResult("controller", CheckState.DEGRADED, what, cost, "install the same version on both")
        ]
    offset_s = found.clock_offset_s
    if offset_s is not None:
        what = f"{offset_s:+.3f} s from the controller's, +-{found.clock_uncertainty_s:.3f} s"
        if abs(offset_s) > CLOCK_TOLERANCE_S + found.clock_uncertainty_s:
            cost = "times of records and power traces of this node are off by that; energy itself is not"
            fix = "chronyc makestep   (or: timedatectl set-ntp true)"
            checks.append(CheckResult("clock", CheckState.DEGRADED, what, cost, fix))
        else:
            checks.append(CheckResult("clock", CheckState.OK, what))
    return checks


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _named(items: Iterable[str], separator: str = " ") -> str:
    listed = list(items)
    more = f"{separator}and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return separator.join(listed[:_MOST_NAMED]) + more
