"""Checks of Slurm's files slurm.conf, plugstack.conf and job_submit.lua.

Only the lines that concern slurm-energy are checked. All functions are pure.
"""

from __future__ import annotations

from typing import Final

from slurm_energy.doctor.findings import FileFault, FileUse, SlurmFileFindings
from slurm_energy.doctor.slurm_energy_settings import energy_checks
from slurm_energy.doctor.verdict import CheckResult, CheckState

_DRAINS: Final = "Slurm cancels or requeues jobs here and drains this node"
_COSTS: Final = {
    FileUse.PROLOG: _DRAINS,
    FileUse.EPILOG: "Slurm drains this node at the end of its next job",
    FileUse.REQUIRED_PLUGIN: f"{_DRAINS}; commands fail",
    FileUse.OPTIONAL_PLUGIN: "Slurm does not load it: sbatch rejects --energy-* flags, or jobs unmeasured",
    FileUse.JOB_SUBMIT: "slurmctld does not start, or not without our module",
    FileUse.CHECK_MODULE: "slurmctld does not check energy flags",
    FileUse.SITE_FACTOR: "slurmctld does not load it: the computed order of the queue has no effect",
    FileUse.ENERGY_PLUGIN: "slurmctld and slurmd do not start",
}
_ON_NODES: Final = (FileUse.PROLOG, FileUse.EPILOG)
_ON_CONTROLLER: Final = (FileUse.JOB_SUBMIT, FileUse.CHECK_MODULE, FileUse.SITE_FACTOR)


def slurm_checks(slurm: SlurmFileFindings) -> list[CheckResult]:
    """Return the results of the checks of Slurm's configuration files that apply to this host's role."""
    if not slurm.conf or slurm.error:
        what = f"{slurm.conf}: {slurm.error}" if slurm.error else "no slurm.conf found"
        return [
            CheckResult(
                "slurm.conf", CheckState.ABSENT, what, "hooks and plugin not checked", "set SLURM_CONF"
            )
        ]
    checks = [CheckResult("slurm.conf", CheckState.OK, slurm.conf)]
    if slurm.is_compute_node is not False:
        checks += _hooks(slurm)
    checks += [_file(fault) for fault in slurm.faults if _matters(fault, slurm)]
    if slurm.is_compute_node is not False or not slurm.is_controller:
        checks.append(_spank(slurm))
    if slurm.is_controller:
        checks.append(_job_submit(slurm))
    return [*checks, *energy_checks(slurm.energy)]


def _hooks(slurm: SlurmFileFindings) -> list[CheckResult]:
    """Check whether and when jobs are announced to the agent.

    Jobs are announced by the Prolog and Epilog programs, or by energy_hooks.so.
    """
    checks = []
    programs = (("Prolog", slurm.prolog), ("Epilog", slurm.epilog))
    if slurm.hooks and (slurm.prolog or slurm.epilog):
        named = " and ".join(program for _, program in programs if program)
        cost = "each job is announced twice: no effect, but it takes time, and a missing file drains the node"
        checks.append(
            CheckResult("hooks", CheckState.DEGRADED, f"{slurm.hooks} and {named}", cost, f"remove {named}")
        )
    elif slurm.hooks:
        checks.append(CheckResult("hooks", CheckState.OK, slurm.hooks))
    else:
        checks += [_program(key, program) for key, program in programs]
    if not slurm.prolog_at_alloc:
        cost = "settings come with the first task, never on nodes without one"
        checks.append(
            CheckResult("PrologFlags", CheckState.DEGRADED, "without Alloc", cost, "PrologFlags=Alloc")
        )
    return checks


def _program(key: str, program: str) -> CheckResult:
    if program:
        return CheckResult(
            key, CheckState.OK, program, "a missing file drains the node; energy_hooks.so would not"
        )
    cost = "jobs are not announced: no policy is applied and no job is measured"
    return CheckResult(
        key,
        CheckState.DEGRADED,
        "none of ours, no energy_hooks.so",
        cost,
        "senergy setup node",
    )


def _matters(fault: FileFault, slurm: SlurmFileFindings) -> bool:
    """Return whether a faulty file matters on this host, according to the host's role in Slurm."""
    if fault.use in _ON_NODES:
        return slurm.is_compute_node is not False
    return slurm.is_controller if fault.use in _ON_CONTROLLER else True


def _file(fault: FileFault) -> CheckResult:
    return CheckResult(
        f"{fault.use} file", CheckState.FAILED, f"{fault.path} {fault.why}", _COSTS[fault.use], fault.todo
    )


def _spank(slurm: SlurmFileFindings) -> CheckResult:
    if not slurm.spank:
        cost = "no --energy-* flags; jobs get the default policy and records have no steps"
        fix = "senergy setup login" if slurm.is_compute_node is False else "senergy setup node"
        if slurm.is_compute_node is None:
            fix += "   (on a login node: senergy setup login)"
        return CheckResult("SPANK", CheckState.DEGRADED, "no energy.so", cost, fix)
    if slurm.spank_required:
        cost = "a node without the file fails every job"
        return CheckResult("SPANK", CheckState.DEGRADED, f"required {slurm.spank}", cost, "write `optional`")
    if slurm.policy_file_fault:
        cost = "at submission only the form of flags is checked"
        fix = "systemctl start senergyctld   (it writes the file)"
        if not slurm.is_controller:
            fix = "systemctl enable --now senergy-policies.timer; on compute nodes senergyd makes the copy"
        what = f"{slurm.spank}; {slurm.policy_file} {slurm.policy_file_fault}"
        return CheckResult("SPANK", CheckState.ABSENT, what, cost, fix)
    release = f", for Slurm {slurm.release}" if slurm.release else "; the installed Slurm release is unknown"
    return CheckResult("SPANK", CheckState.OK, f"{slurm.spank}{release}")


def _job_submit(slurm: SlurmFileFindings) -> CheckResult:
    if slurm.job_submit:
        return CheckResult("job_submit", CheckState.OK, slurm.job_submit)
    cost = "a client without energy.so, or with one of its own, gets wrong flags past submission"
    return CheckResult(
        "job_submit",
        CheckState.ABSENT,
        "energy flags are not checked in slurmctld",
        cost,
        "senergy setup controller",
    )
