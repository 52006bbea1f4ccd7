"""What `senergy doctor` found on a node, as plain data: between `inspection` and `diagnosis`."""

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
        key, component, source: as in `devices.interface.EnergyCounter`.
        quality: `measured`, `modelled` or `partial`.
        energy_uj: what it shows in microjoules; None if it cannot be read.
        error: why not.
        watts: mean power while it was watched; None if it could not be read twice.
        wraps_after_s: shortest time in which it can wrap; None if it does not.
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
        key, kind: as in `devices.interface.Knob`.
        value: in force, with its unit; None if it cannot be read.
        writable: this process may set it.
    """

    key: str
    kind: str
    value: str | None
    writable: bool


@dataclass(frozen=True, slots=True)
class InterfaceFinding:
    """A hardware interface that the kernel or a library may offer.

    Attributes:
        name: e.g. `powercap`.
        present: whether the kernel shows it.
        in_use: whether counters or knobs of it are used.
        expected: the hardware is there, so that the interface should be.
        cost: what its lack costs.
        fix: what brings it.
        reason: why it cannot be used although it is present; empty if it can, or that is not known.
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
    """A file that Slurm's configuration names and that Slurm cannot use, or should not.

    Attributes:
        path: the file.
        why: what is wrong with it.
        todo: what to do about it.
        use: how Slurm uses it.
    """

    path: str
    why: str
    todo: str
    use: FileUse


@dataclass(frozen=True, slots=True)
class SlurmFileFindings:
    """What slurm.conf and plugstack.conf say.

    Attributes:
        conf: the file read; empty if none was found.
        error: why it could not be read.
        prolog, epilog: programs that belong to us, empty if none does.
        prolog_at_alloc: PrologFlags has Alloc, so that nodes are set before the first task.
        faults: files that are named and cannot be used, or that others could change.
        spank: the line of the plugin with the flags; empty if there is none.
        spank_required: a line of ours says `required`.
        hooks: the line of the plugin that announces jobs; empty if there is none.
        policy_file: named by the plugin's line; empty for none.
        policy_file_missing: and it is not there.
        job_submit: job_submit.lua, if it calls our check; else empty.
        release: the installed Slurm; empty if not known.
        is_compute_node: slurm.conf has this host as a node; None if that cannot be known.
        is_controller: slurm.conf has this host as slurmctld's.
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
    """Everything that was found on a node; errors are texts, empty where all is well.

    Attributes:
        root: the inspection ran as root, so what it could not read nobody can.
        virtual: the node is a virtual machine.
        agent: answer to `status`, or why there is none.
        controller: answer of `GET /v1/status`, or why there is none.
        config_error: why the configuration cannot be read at all.
        config_findings: what its check found, as `senergy config check` prints it.
        meter_error: what is wrong with section node_power of the configuration.
        sampling_interval_s: seconds between samples while jobs run, as configured or as counters need.
        clock_offset_s: this node's clock minus the controller's; None if not known.
        clock_uncertainty_s: half the time that asking took.
        state_free_mb: space where the agent keeps its records; None if not known.
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
