"""Diagnosis of the findings on a host: the state of each check, the cost of each fault, and its remedy.

All functions are pure. `inspection` collects the findings, and `report` formats the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_energy.config.findings import errors, warnings
from slurm_energy.doctor.attribution_check import attribution_checks
from slurm_energy.doctor.budget_check import budget_checks
from slurm_energy.doctor.delivery_checks import counted, spool_check, undelivered_checks
from slurm_energy.doctor.failover_check import failover_checks
from slurm_energy.doctor.findings import CounterFinding, HostFindings, KnobFinding
from slurm_energy.doctor.gpu_order_check import gpu_order_checks
from slurm_energy.doctor.power_saving_check import power_saving_checks
from slurm_energy.doctor.slurm_checks import slurm_checks
from slurm_energy.doctor.tuning_check import tuning_check
from slurm_energy.doctor.verdict import CheckResult, CheckState

CLOCK_TOLERANCE_S = 2.0
_SAFE_PART_OF_RANGE = 0.9
_MOST_NAMED = 6
_START_CONTROLLER = "systemctl start senergyctld; if it does not start: journalctl -u senergyctld"
_KERNEL_LOG = "look for driver errors: journalctl -k   (or dmesg)"
_DOUBTFUL_CONFIG = "the daemons start, but may not do what the file intends"
_NO_CONFIG = "daemons do not start, or continue with the configuration read before"
NOT_HERE = "not on this node"


def diagnose(findings: HostFindings) -> list[CheckResult]:
    """Return the results of all checks that apply to the host, ordered as in the report."""
    checks = [_role(findings)]
    if _is_measured(findings):
        checks += [*_energy(findings), *_interfaces(findings), *_knobs(findings)]
        checks += [_sampling(findings), *attribution_checks(findings), *gpu_order_checks(findings)]
        checks += [tuning_check(findings), *budget_checks(findings)]
    checks += [
        *_config(findings),
        *_meter(findings),
        *_agent(findings),
        _munge(findings),
        *_controller(findings),
        *failover_checks(findings),
        *power_saving_checks(findings),
    ]
    return [*checks, *slurm_checks(findings.slurm)]


def is_healthy(checks: Iterable[CheckResult]) -> bool:
    """Return whether no check is degraded or failed.

    The exit code of `senergy doctor` depends on this result.
    """
    return not any(check.state in (CheckState.DEGRADED, CheckState.FAILED) for check in checks)


def _role(findings: HostFindings) -> CheckResult:
    """Return the check result that names the role of this host in Slurm.

    The role decides which other checks apply.
    """
    slurm = findings.slurm
    if slurm.is_compute_node is None:
        return CheckResult(
            "role", CheckState.OK, "not in slurm.conf, or there is none; checked as a compute node"
        )
    roles = ["controller"] * slurm.is_controller + ["compute node"] * slurm.is_compute_node
    return CheckResult(
        "role", CheckState.OK, " and ".join(roles) or "login node: neither slurmctld's host nor a node"
    )


def _is_measured(findings: HostFindings) -> bool:
    """Return whether this host is or may be a compute node, or runs an agent.

    `diagnose` checks the devices for measuring energy only on such a host.
    """
    return findings.slurm.is_compute_node is not False or not isinstance(findings.agent, str)


def _energy(findings: HostFindings) -> list[CheckResult]:
    """Return one check for each component of the node, such as the CPU or a GPU.

    The check states whether the energy of the component is known, and from which source.
    """
    names = dict.fromkeys(["cpu", "dram", *(f"gpu[{gpu.index}]" for gpu in findings.hardware.gpus)])
    names |= dict.fromkeys(counter.component for counter in findings.counters)
    names["node"] = None
    return [_component(name, findings) for name in names]


def _component(name: str, findings: HostFindings) -> CheckResult:
    own = [counter for counter in findings.counters if counter.component == name]
    label = f"energy {name}"
    if not own:
        return CheckResult(label, *_absent_component(name, findings))
    bad = [counter for counter in own if counter.energy_uj is None]
    what = ", ".join(dict.fromkeys(f"{counter.source}" for counter in own))
    what += f", {counted(len(own), 'counter')}"
    if bad and not findings.root and _agent_has(findings, bad):
        return CheckResult(
            label, CheckState.OK, f"{what}, readable by the agent only, as the kernel requires"
        )
    if bad:
        reasons = "; ".join(dict.fromkeys(counter.error for counter in bad))
        cost = f"the energy of {name} is unknown (null) in every record"
        fix = (
            "run `sudo senergy doctor`: counters are root's"
            if not findings.root
            else _ask_bmc(own) or _KERNEL_LOG
        )
        return CheckResult(label, CheckState.DEGRADED, f"{what}, {len(bad)} unreadable: {reasons}", cost, fix)
    if any(counter.quality == "modelled" for counter in own):
        what += f", {_watts(own)}"
        return CheckResult(
            label, CheckState.OK, f"{what}, modelled", "the error of a model instead of a counter"
        )
    what += f", {_watts(own)}"
    if still := [counter.key for counter in own if counter.energy_uj == 0 and counter.watts == 0]:
        cost = f"the energy of {name} is 0 in every record"
        return CheckResult(
            label,
            CheckState.DEGRADED,
            f"{what}; at 0, does not change: {_named(still)}",
            cost,
            _KERNEL_LOG,
        )
    return CheckResult(label, CheckState.OK, what)


def _ask_bmc(counters: Iterable[CounterFinding]) -> str:
    """Return a command that tests whether the BMC responds; an empty text if no counter comes from a BMC."""
    sources = {counter.source for counter in counters}
    if "ipmi:dcmi" in sources:
        return "ipmitool dcmi power reading   (over the network: -I lanplus -H ADDRESS, see node_power)"
    return "curl -k ADDRESS/redfish/v1   (node_power.bmc)" if "redfish:power" in sources else ""


def _watts(counters: Iterable[CounterFinding]) -> str:
    listed = [counter.watts for counter in counters]
    readable = [watts for watts in listed if watts is not None]
    return f"{sum(readable):.1f} W" if readable and len(readable) == len(listed) else "power unknown"


def _agent_has(findings: HostFindings, counters: Iterable[CounterFinding]) -> bool:
    if isinstance(findings.agent, str):
        return False
    devices = findings.agent.get("devices")
    measured = devices.get("counters") if isinstance(devices, Mapping) else None
    return isinstance(measured, list) and all(counter.key in measured for counter in counters)


def _absent_component(name: str, findings: HostFindings) -> tuple[CheckState, str, str, str]:
    if name == "cpu":
        if findings.virtual:
            fix = "nothing can be done in a virtual machine"
        else:
            fix = "modprobe intel_rapl_msr   (AMD Zen as well)"
        cost = "the energy of processors is unknown (null) in every record"
        return CheckState.DEGRADED, "no counter", cost, fix
    if name == "node":
        cost = "no record includes fans, disks, network and power supplies; jobs are compared without them"
        return CheckState.ABSENT, "no meter of the whole node", cost, ""
    if name == "dram":
        cost = "sums of cpu and dram lack memory; policies still work"
        return CheckState.ABSENT, "no counter; desktop and AMD processors have none", cost, ""
    cost = f"the energy of {name} is unknown (null) in every record"
    return (
        CheckState.DEGRADED,
        "the GPU has no readable energy counter",
        cost,
        "nvidia-smi -q -d POWER",
    )


def _interfaces(findings: HostFindings) -> list[CheckResult]:
    checks = []
    for interface in findings.interfaces:
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
                    "present, not used: it has no data here, or another source has priority",
                )
            )
        elif interface.expected:
            checks.append(CheckResult(name, CheckState.DEGRADED, "missing", interface.cost, interface.fix))
        else:
            checks.append(CheckResult(name, CheckState.ABSENT, NOT_HERE))
    return checks


def _knobs(findings: HostFindings) -> list[CheckResult]:
    checks = []
    for name in dict.fromkeys(knob.name for knob in findings.knobs):
        own = [knob for knob in findings.knobs if knob.name == name]
        silent = [knob.key for knob in own if knob.value is None]
        locked = [knob.key for knob in own if not knob.writable]
        what = f"{counted(len(own), 'knob')}, {_values(own)}"
        if silent:
            cost = "policies do not change these"
            what += f"; unreadable: {_named(silent)}"
            checks.append(CheckResult(name, CheckState.DEGRADED, what, cost, _KERNEL_LOG))
        elif locked and findings.root:
            cost = "policies cannot set these"
            fix = "is /sys mounted read-only? mount -o remount,rw /sys"
            checks.append(
                CheckResult(name, CheckState.DEGRADED, f"{what}; not writable: {_named(locked)}", cost, fix)
            )
        else:
            checks.append(CheckResult(name, CheckState.OK, what))
    if not checks:
        cost = "every policy acts as `monitor` here: jobs are measured, nothing can be set"
        fix = "modprobe acpi-cpufreq; enable P-states (CPPC) in the firmware"
        if findings.virtual:
            checks.append(CheckResult("knobs", CheckState.ABSENT, "none; virtual machines have none", cost))
        else:
            checks.append(CheckResult("knobs", CheckState.DEGRADED, "none", cost, fix))
    return checks


def _values(knobs: Iterable[KnobFinding]) -> str:
    values = dict.fromkeys(knob.value for knob in knobs if knob.value is not None)
    return _named(list(values), ", ") or "no value"


def _sampling(findings: HostFindings) -> CheckResult:
    """Check that the sampling interval is short enough to detect every wrap of each counter."""
    wraps = [(c.wraps_after_s, c.key) for c in findings.counters if c.wraps_after_s is not None]
    interval_s = findings.sampling_interval_s
    if not wraps:
        return CheckResult("sampling", CheckState.OK, f"every {interval_s:.3g} s")
    soonest_s, key = min(wraps)
    what = f"every {interval_s:.3g} s; {key} wraps first, after {soonest_s:.3g} s at full power"
    if interval_s <= soonest_s * _SAFE_PART_OF_RANGE:
        return CheckResult("sampling", CheckState.OK, what)
    cost = "a wrap can be missed: energy is too low by whole ranges and marked uncertain"
    fix = f"agent.sampling_hz = {math.ceil(1 / (soonest_s * _SAFE_PART_OF_RANGE)):d} or more"
    return CheckResult("sampling", CheckState.DEGRADED, what, cost, fix)


def _config(findings: HostFindings) -> list[CheckResult]:
    """Return the results of the check of the configuration.

    There is one result for each error and each warning. If there are none, a single result has the state ok.
    """
    fix = "senergy config check"
    if findings.config_error:
        return [CheckResult("configuration", CheckState.FAILED, findings.config_error, _NO_CONFIG, fix)]
    failed = [
        CheckResult("configuration", CheckState.FAILED, f.text, _NO_CONFIG, fix)
        for f in errors(findings.config_findings)
    ]
    warned = [
        CheckResult("configuration", CheckState.DEGRADED, f.text, _DOUBTFUL_CONFIG, fix)
        for f in warnings(findings.config_findings)
    ]
    return [*failed, *warned] or [
        CheckResult("configuration", CheckState.OK, findings.config_path or "defaults, no file")
    ]


def _meter(findings: HostFindings) -> list[CheckResult]:
    """Check the section `node_power` of the configuration, which states how the node's power is read.

    Return one degraded check result if the section is invalid; an empty list if it is valid.
    """
    if not findings.meter_error:
        return []
    cost = "the node's power comes from another source, or from none"
    return [
        CheckResult("node_power", CheckState.DEGRADED, findings.meter_error, cost, "senergy config check")
    ]


def _agent(findings: HostFindings) -> list[CheckResult]:
    if not _is_measured(findings):
        return [CheckResult("agent", CheckState.ABSENT, "none; none needed, as this is not a compute node")]
    if isinstance(findings.agent, str):
        cost = "no policy is applied and no job is measured on this node"
        what = findings.agent
        fix = "systemctl start senergyd" if findings.is_agent_enabled else "senergy setup node"
        return [CheckResult("agent", CheckState.FAILED, what, cost, fix)]
    answer = findings.agent
    checks = [
        CheckResult(
            "agent", CheckState.OK, f"version {answer.get('version', '?')} at {findings.agent_socket}"
        )
    ]
    if answer.get("version") != findings.version:
        what = f"version {answer.get('version', '?')}, this command is {findings.version}"
        cost = "the agent runs the code of another installation"
        checks[0] = CheckResult("agent", CheckState.DEGRADED, what, cost, "systemctl restart senergyd")
    if left := answer.get("unrestored"):
        cost = "jobs start with settings left by an earlier job"
        checks.append(
            CheckResult("settings left", CheckState.DEGRADED, _named(left), cost, "senergyd --restore")
        )
    checks.append(_devices_of_agent(findings, answer))
    checks += [spool_check(findings, answer), *undelivered_checks(answer)]
    return checks


def _devices_of_agent(findings: HostFindings, answer: Mapping[str, Any]) -> CheckResult:
    """Compare the devices that are present now with the devices that the running agent measures.

    The agent searches for devices only when it starts.

    Args:
        findings: findings on the host.
        answer: the agent's response to `status`.
    """
    devices = answer.get("devices")
    measured = devices.get("counters") if isinstance(devices, Mapping) else None
    present = {counter.key for counter in findings.counters}
    if not isinstance(measured, list):
        return CheckResult("agent's devices", CheckState.OK, "not reported")
    components = {counter.key for counter in findings.counters if counter.component != "node"}
    new, lost = sorted(components.difference(measured)), sorted(set(map(str, measured)) - present)
    if findings.root and new:
        cost = "the agent does not measure devices that appeared after its start"
        return CheckResult(
            "agent's devices", CheckState.DEGRADED, f"new: {_named(new)}", cost, "systemctl restart senergyd"
        )
    if findings.root and lost:
        cost = "their energy is unknown since they disappeared"
        return CheckResult("agent's devices", CheckState.DEGRADED, f"gone: {_named(lost)}", cost, _KERNEL_LOG)
    return CheckResult("agent's devices", CheckState.OK, counted(len(measured), "counter"))


def _munge(findings: HostFindings) -> CheckResult:
    if findings.munge_error:
        cost = "records stay on the node, and the controller cannot be queried"
        return CheckResult("munge", CheckState.FAILED, findings.munge_error, cost, "systemctl start munge")
    return CheckResult("munge", CheckState.OK, "creates and decodes credentials")


def _controller(findings: HostFindings) -> list[CheckResult]:
    if isinstance(findings.controller, str):
        cost = "records wait in the spools of the nodes until it runs again"
        fix = "systemctl start senergyctld   (on the controller)"
        if findings.munge_error and findings.munge_error in findings.controller:
            what, fix = "not queried, since munge does not work", "see munge"
            return [CheckResult("controller", CheckState.DEGRADED, what, cost, fix)]
        if findings.slurm.is_controller:
            cost += "; after a restart of the host flags are checked for their form only"
            return [
                CheckResult("controller", CheckState.FAILED, findings.controller, cost, _START_CONTROLLER)
            ]
        return [CheckResult("controller", CheckState.DEGRADED, findings.controller, cost, fix)]
    checks = [CheckResult("controller", CheckState.OK, f"{findings.controller_url}")]
    if (version := findings.controller.get("version")) != findings.version:
        what = f"{findings.controller_url} has version {version}, this node {findings.version}"
        cost = "the older of the two does not know all fields of the newer"
        checks = [
            CheckResult("controller", CheckState.DEGRADED, what, cost, "install the same version on both")
        ]
    offset_s = findings.clock_offset_s
    if offset_s is not None:
        what = f"{offset_s:+.3f} s from the controller's, +-{findings.clock_uncertainty_s:.3f} s"
        if abs(offset_s) > CLOCK_TOLERANCE_S + findings.clock_uncertainty_s:
            cost = "times of records and power traces of this node are off by that; energy itself is not"
            fix = "chronyc makestep   (or: timedatectl set-ntp true)"
            checks.append(CheckResult("clock", CheckState.DEGRADED, what, cost, fix))
        else:
            checks.append(CheckResult("clock", CheckState.OK, what))
    return checks


def _named(items: Iterable[str], separator: str = " ") -> str:
    listed = list(items)
    more = f"{separator}and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return separator.join(listed[:_MOST_NAMED]) + more
