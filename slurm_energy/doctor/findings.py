"""The findings of `senergy doctor` on a host, as plain data between `inspection` and `diagnosis`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slurm_energy.config.findings import Finding
from slurm_energy.devices.hardware import NodeHardware


@dataclass(frozen=True, slots=True)
class CounterFinding:
    """An energy counter.

    Attributes:
        key, component, source: as in `devices.driver.EnergyCounter`.
        quality: `measured`, `modelled` or `partial`.
        energy_uj: its value in microjoules; None if it cannot be read.
        error: why it cannot be read.
        watts: mean power during the inspection; None if it could not be read twice.
        wraps_after_s: shortest time until a wrap; None if it does not wrap.
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
    """A knob.

    Attributes:
        key, name: as in `devices.driver.Knob`.
        value: current value with its unit; None if it cannot be read.
        writable: this process may set it.
    """

    key: str
    name: str
    value: str | None
    writable: bool


@dataclass(frozen=True, slots=True)
class InterfaceFinding:
    """A hardware interface of the kernel or of a library.

    Attributes:
        name: for example `powercap`.
        present: the kernel exposes it.
        in_use: counters or knobs of it are used.
        expected: the hardware is present, so that the interface should be.
        cost: cost of its absence.
        fix: how to enable it.
        reason: why it cannot be used although it is present; empty if it can, or if unknown.
    """

    name: str
    present: bool
    in_use: bool
    expected: bool
    cost: str
    fix: str
    reason: str = ""


class FileUse(StrEnum):
    """How Slurm uses a file, which decides what happens without it."""

    PROLOG = "Prolog"
    EPILOG = "Epilog"
    REQUIRED_PLUGIN = "required plugin"
    OPTIONAL_PLUGIN = "optional plugin"
    JOB_SUBMIT = "job_submit.lua"
    CHECK_MODULE = "module of job_submit.lua"
    SITE_FACTOR = "site factor plugin"


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file in Slurm's configuration that Slurm cannot use, or should not use.

    Attributes:
        path: the file.
        why: the fault.
        todo: the remedy.
        use: how Slurm uses the file.
    """

    path: str
    why: str
    todo: str
    use: FileUse


@dataclass(frozen=True, slots=True)
class SlurmFileFindings:
    """The content of slurm.conf and plugstack.conf that concerns slurm-energy.

    Attributes:
        conf: the slurm.conf that was read; empty if none was found.
        error: why it could not be read.
        prolog, epilog: programs of slurm-energy; empty if there is none.
        prolog_at_alloc: PrologFlags has Alloc, so that nodes are set before the first task.
        faults: files that are named but unusable, or that other users could change.
        spank: the plugstack line of the flags plugin; empty if there is none.
        spank_required: one of our lines says `required`.
        hooks: the plugstack line of the plugin that announces jobs; empty if there is none.
        policy_file: policy file named on the plugin's line; empty for none.
        policy_file_missing: that file does not exist.
        job_submit: job_submit.lua, if it calls our check; otherwise empty.
        release: the installed Slurm; empty if unknown.
        is_compute_node: slurm.conf lists this host as a node; None if unknown.
        is_controller: slurm.conf lists this host as the host of slurmctld.
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
    policy_file_missing: bool = False
    job_submit: str = ""
    release: str = ""
    is_compute_node: bool | None = None
    is_controller: bool = False


@dataclass(frozen=True, slots=True)
class HostFindings:
    """All findings on a host; errors are texts, empty without an error.

    Attributes:
        root: the inspection ran as root, so that an unreadable file is unreadable for every user.
        virtual: the host is a virtual machine.
        agent: the response to `status`, or why there is none.
        controller: the response to `GET /v1/status`, or why there is none.
        config_error: why the configuration cannot be read at all.
        config_findings: findings of its check, as `senergy config check` prints them.
        meter_error: error in section node_power of the configuration.
        sampling_interval_s: seconds between samples while jobs run, as configured or as the counters need.
        clock_offset_s: this host's clock minus the controller's; None if unknown.
        clock_uncertainty_s: half the duration of the request.
        state_free_mb: free space in the agent's state directory; None if unknown.
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
    spool_limit_mb: float = 0.0
    state_free_mb: float | None = None
    agent_socket: str = ""
    agent: Mapping[str, Any] | str = ""
    controller_url: str = ""
    controller: Mapping[str, Any] | str = ""
    clock_offset_s: float | None = None
    clock_uncertainty_s: float = 0.0
    munge_error: str = ""
    slurm: SlurmFileFindings = field(default_factory=SlurmFileFindings)
