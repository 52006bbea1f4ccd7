"""Findings of `senergy doctor` on a host: plain data that `inspection` collects and `diagnosis` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slurm_energy.config import TuningConfig
from slurm_energy.config.findings import Finding
from slurm_energy.devices.cpu.resctrl import ResctrlSupport
from slurm_energy.devices.hardware import NodeHardware


@dataclass(frozen=True, slots=True)
class CounterFinding:
    """Finding on an energy counter.

    Attributes:
        key, component, source: attributes of the counter, see `devices.driver.EnergyCounter`.
        quality: `measured`, `modelled` or `partial`.
        energy_uj: reading of the counter in microjoules; None if the counter cannot be read.
        error: why the counter cannot be read; empty if it can be read.
        wraps_after_s: minimum time between two wraps in seconds; None if the counter does not wrap.
        watts: mean power during the inspection; None if the counter could not be read twice.
    """

    key: str
    component: str
    source: str
    quality: str
    energy_uj: int | None
    error: str
    wraps_after_s: float | None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class KnobFinding:
    """Finding on a knob (a value of the hardware that can be set).

    Attributes:
        key, name: attributes of the knob, see `devices.driver.Knob`.
        value: current value with its unit; None if the value cannot be read.
        writable: whether this process may write the knob.
    """

    key: str
    name: str
    value: str | None
    writable: bool


@dataclass(frozen=True, slots=True)
class InterfaceFinding:
    """Finding on a hardware interface of Linux or of a vendor's library.

    Attributes:
        name: name of the interface, for example `powercap`.
        present: whether Linux exposes the interface.
        in_use: whether counters or settings (knobs) of the interface are used.
        expected: whether the hardware should have the interface.
        cost: consequence if the interface is missing; empty if unknown.
        fix: how to enable the interface; empty if unknown.
        reason: why a present interface cannot be used; empty if the interface can be used, or if the reason
            is unknown.
    """

    name: str
    present: bool
    in_use: bool
    expected: bool
    cost: str
    fix: str
    reason: str = ""


class FileUse(StrEnum):
    """How Slurm uses a file. The use determines the consequence of a fault in the file."""

    PROLOG = "Prolog"
    EPILOG = "Epilog"
    REQUIRED_PLUGIN = "required plugin"
    OPTIONAL_PLUGIN = "optional plugin"
    JOB_SUBMIT = "job_submit.lua"
    CHECK_MODULE = "module of job_submit.lua"
    SITE_FACTOR = "site factor plugin"
    ENERGY_PLUGIN = "energy plugin"


@dataclass(frozen=True, slots=True)
class FileFault:
    """A faulty file that Slurm's configuration names.

    Slurm cannot use the file, or other users could change it.

    Attributes:
        path: path of the file.
        why: description of the fault.
        todo: description of the remedy.
        use: how Slurm uses the file.
    """

    path: str
    why: str
    todo: str
    use: FileUse


@dataclass(frozen=True, slots=True)
class SlurmEnergyFindings:
    """Settings of slurm.conf that decide which energy Slurm's own accounting shows.

    Attributes:
        plugins: value of AcctGatherEnergyType; empty if not set.
        ours: whether acct_gather_energy/senergy is among `plugins`.
        stale: why slurm-energy.conf no longer names a plugin that was once enabled; empty otherwise.
        from_include: whether slurm-energy.conf, and not slurm.conf itself, names the plugin; meaningful only
            if `ours` is True.
        contain: whether PrologFlags has Contain or X11, so that Slurm records the energy of a job in its
            extern step.
        gathers: whether JobAcctGatherType is set. Otherwise Slurm records no energy for any Slurm step.
        node_interval_s: AcctGatherNodeFreq in seconds; 0 if not set.
    """

    plugins: str = ""
    ours: bool = False
    stale: str = ""
    from_include: bool = False
    contain: bool = False
    gathers: bool = False
    node_interval_s: int = 0


@dataclass(frozen=True, slots=True)
class SlurmFileFindings:
    """The content of slurm.conf and plugstack.conf that concerns slurm-energy.

    Attributes:
        conf: path of slurm.conf; empty if no slurm.conf was found.
        error: why slurm.conf could not be read; empty if it was read.
        prolog, epilog: Prolog and Epilog program that calls slurm-energy; empty if slurm-energy is not
            called.
        prolog_at_alloc: whether PrologFlags has Alloc or a flag that implies it, so that settings are applied
            before the first task starts.
        faults: files that slurm.conf or plugstack.conf names, but that are unusable or that other users
            could change.
        spank: path of the SPANK plugin energy.so in plugstack.conf; empty if plugstack.conf does not list
            energy.so.
        spank_required: whether one of the two plugins of slurm-energy is marked `required`.
        hooks: path of energy_hooks.so, which announces jobs to the agent, in plugstack.conf; empty if not
            listed.
        policy_file: policy file that energy.so uses. If energy.so finds no policy file, the path at which it
            looks first. Empty if energy.so is not listed.
        policy_file_fault: why energy.so uses no policy file; empty if energy.so uses one.
        job_submit: path of job_submit.lua if this script loads senergy_submit.lua; otherwise empty.
        release: installed Slurm release; empty if unknown.
        is_compute_node: whether slurm.conf lists this host as a node; None if unknown.
        is_controller: whether slurm.conf lists this host as a host of slurmctld.
        energy: settings for energy in Slurm's own accounting.
    """

    conf: str = ""
    error: str = ""
    prolog: str = ""
    epilog: str = ""
    prolog_at_alloc: bool = False
    faults: tuple[FileFault, ...] = ()
    spank: str = ""
    spank_required: bool = False
    hooks: str = ""
    policy_file: str = ""
    policy_file_fault: str = ""
    job_submit: str = ""
    release: str = ""
    is_compute_node: bool | None = None
    is_controller: bool = False
    energy: SlurmEnergyFindings = field(default_factory=SlurmEnergyFindings)


@dataclass(frozen=True, slots=True)
class HostFindings:
    """Everything that was found on a host by its inspection.

    Fields for errors contain text; an empty text means that there is no error.

    Attributes:
        node: name of the node.
        version: release of slurm-energy that made the inspection.
        time: Unix time of the inspection.
        root: whether the inspection ran as root. If so, a file that the inspection could not read is
            unreadable for every user.
        throttles: components with a throttle sensor.
        virtual: whether the host is a virtual machine.
        is_agent_enabled: whether systemd starts senergyd at boot.
        agent: the agent's response to `status`, or text that says why there is no response.
        controller: the controller's response to `GET /v1/status`, or text that says why there is no
            response.
        config_error: why the configuration cannot be read at all.
        config_findings: errors and warnings in the configuration, as `senergy config check` prints them.
        meter_error: error in the section `node_power` of the configuration.
        sampling_interval_s: seconds between samples while jobs run, as configured or as the counters
            require.
        tuning: tuning modes of the configuration.
        budget_mode: mode of power budgets in the configuration.
        resctrl: whether the node can monitor the memory traffic of jobs.
        resctrl_mode: value of `agent.resctrl` in the configuration.
        has_numpy: whether numpy is installed. The search for operating points needs numpy.
        spool_limit_mb: maximum size of the agent's spool in megabytes.
        clock_offset_s: this host's clock minus the controller's clock; None if unknown.
        clock_uncertainty_s: uncertainty of `clock_offset_s`: half the duration of the request for the
            controller's time.
        state_free_mb: free space in the agent's state directory in megabytes; None if unknown.
        gpu_order: order in which Slurm numbers the NVIDIA GPUs, as text; empty if unknown.
        gpu_order_error: reason why the order is unknown; empty if the order is known, if the node has no
            NVIDIA GPUs, or if this host has no slurm.conf.
    """

    node: str
    version: str
    time: float
    root: bool
    hardware: NodeHardware
    counters: tuple[CounterFinding, ...] = ()
    knobs: tuple[KnobFinding, ...] = ()
    interfaces: tuple[InterfaceFinding, ...] = ()
    throttles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    virtual: bool = False
    config_path: str = ""
    config_error: str = ""
    config_findings: tuple[Finding, ...] = ()
    meter_error: str = ""
    sampling_interval_s: float = 1.0
    tuning: TuningConfig = field(default_factory=TuningConfig)
    budget_mode: str = "off"
    resctrl: ResctrlSupport = ResctrlSupport(False, False, False)
    resctrl_mode: str = "auto"
    has_numpy: bool = True
    spool_limit_mb: float = 0.0
    state_free_mb: float | None = None
    agent_socket: str = ""
    is_agent_enabled: bool = True
    agent: Mapping[str, Any] | str = ""
    controller_url: str = ""
    controller: Mapping[str, Any] | str = ""
    clock_offset_s: float | None = None
    clock_uncertainty_s: float = 0.0
    munge_error: str = ""
    gpu_order: str = ""
    gpu_order_error: str = ""
    slurm: SlurmFileFindings = field(default_factory=SlurmFileFindings)
