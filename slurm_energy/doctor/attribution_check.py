"""Check of `senergy doctor` of the division of memory energy among jobs that share a node.

The check states whether this energy is divided by the memory traffic of the jobs.
"""

from __future__ import annotations

from slurm_energy.devices.cpu.resctrl import CORE_ENERGY, TRAFFIC
from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState

_NAME = "attribution"
_DIVIDES = {TRAFFIC: "dram", CORE_ENERGY: "cpu"}
_COST = (
    "unlike jobs on a shared node: memory energy by CPU time is up to 2.3 times the true value (GEMM beside "
    "TRIAD in the lab: +125 % and -36 %, with resctrl 0 %)"
)
_MOUNT = 'agent.resctrl = "mount" or mount -t resctrl resctrl /sys/fs/resctrl; then restart senergyd'


def attribution_checks(findings: HostFindings) -> list[CheckResult]:
    """Check whether the node can divide the energy of memory among jobs by their memory traffic.

    The kernel's file system resctrl counts this traffic. The result is empty if the node measures no energy
    that resctrl helps to divide.
    """
    support = findings.resctrl
    measured = {counter.component for counter in findings.counters if not counter.error}
    used = [quantity for quantity in support.quantities if _DIVIDES[quantity] in measured]
    if used and findings.resctrl_mode != "off":
        texts = [f"{_DIVIDES[quantity]} by {quantity}" for quantity in used]
        return [CheckResult(_NAME, CheckState.OK, f"resctrl: {', '.join(texts)}")]
    if "dram" not in measured or not (support.capable or used):
        return []
    if used:
        return [
            CheckResult(_NAME, CheckState.ABSENT, "agent.resctrl is off", _COST, 'agent.resctrl = "auto"')
        ]
    if support.mounted:
        return [CheckResult(_NAME, CheckState.ABSENT, "resctrl counts no memory traffic here", _COST)]
    if not support.offered:
        reason = "the processor counts memory traffic by job, but this kernel has no resctrl"
        return [CheckResult(_NAME, CheckState.ABSENT, reason, _COST, "a kernel with CONFIG_X86_CPU_RESCTRL")]
    if findings.resctrl_mode == "mount":
        text = "resctrl is not mounted yet; senergyd mounts it at its start"
        return [CheckResult(_NAME, CheckState.ABSENT, text, _COST, "systemctl restart senergyd")]
    return [CheckResult(_NAME, CheckState.ABSENT, "resctrl is available but not mounted", _COST, _MOUNT)]
