"""Comparison of all energy policies over the programs of the demonstration, as a Markdown table.

Every run is a job of the agent's job manager. Each program has its own emulated node with a virtual clock.
The energy is the true energy of the whole node from the model, not the measured energy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_energy.policies.catalogue import BUILT_IN
from slurm_energy_lab.model import UNKNOWN_PROFILE
from slurm_energy_lab.virtual_node import VirtualNode

UNKNOWN_MACHINE = "unknown GPUs"
CAP_SHARE = 0.75
"""Limit under `cap` as a share of the power that the job draws under `monitor`."""
BASELINE = "monitor"


@dataclass(frozen=True, slots=True)
class ComparedProgram:
    """A program to compare, and the node on which it runs.

    Attributes:
        kernel: name of the compute kernel or program.
        device: `cpu` or `gpu`, where the kernel runs.
        profile: name of the node's profile.
        machine: readable name of the hardware.
    """

    kernel: str
    device: str
    profile: str
    machine: str


PROGRAMS = (
    ComparedProgram("gemm", "cpu", "xeon-8358", "2 x Xeon 8358"),
    ComparedProgram("triad", "cpu", "xeon-8358", "2 x Xeon 8358"),
    ComparedProgram("gemm", "gpu", "epyc-7513-a100", "4 x A100"),
    ComparedProgram("triad", "gpu", "epyc-7513-a100", "4 x A100"),
    ComparedProgram("train", "gpu", "xeon-4210-rtx6000", "8 x RTX 6000"),
    ComparedProgram("train", "gpu", "xeon-h100", "8 x H100"),
    ComparedProgram("train", "gpu", UNKNOWN_PROFILE, UNKNOWN_MACHINE),
    ComparedProgram("pipeline", "gpu", UNKNOWN_PROFILE, UNKNOWN_MACHINE),
)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """A run of a program under a policy.

    Attributes:
        kernel, machine: the program and its hardware.
        policy: name of the energy policy.
        seconds: run time of the program in seconds.
        joules: energy of the whole node.
        tuning: value of the key `tuning` in the job's energy record (actions of the tuner); None if the
            policy has no objective.
    """

    kernel: str
    machine: str
    policy: str
    seconds: float
    joules: float
    tuning: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Return the run as a dict for JSON."""
        return asdict(self)


def compare(
    seconds: float,
    programs: Iterable[ComparedProgram] = PROGRAMS,
    policies: Sequence[str] = tuple(BUILT_IN),
    on_run: Callable[[PolicyRun], None] = lambda _: None,
) -> list[PolicyRun]:
    """Run every program under every policy. Return the runs, grouped by program.

    Args:
        seconds: run time of the programs at full speed.
        programs: programs to run.
        policies: the policies. `monitor` is always included and runs first.
        on_run: function that is called after each run.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="senergy-policies-") as name:
        for number, program in enumerate(programs):
            folder = Path(name) / str(number)
            folder.mkdir()
            node = VirtualNode(folder, program.profile, sampling_hz=1.0, node_meter=True)
            try:
                draw: dict[str, float] = {}
                for policy in dict.fromkeys((BASELINE, *policies)):
                    runs.append(_run(node, program, policy, seconds, draw))
                    on_run(runs[-1])
            finally:
                node.close()
    return runs


def _run(
    node: VirtualNode, program: ComparedProgram, policy: str, seconds: float, draw: dict[str, float]
) -> PolicyRun:
    """Run a program under an energy policy, with an agent that has no data of earlier jobs.

    A run under `monitor` stores the power by component in `draw`. A run under `cap` derives its limits from
    `draw`.
    """
    node.restart_agent()
    node.wait(30.0)
    job_id, flags = node.new_job_id(), {"policy": policy}
    if policy == "cap":
        flags |= _cap_flags(program.device, draw)
    before, begin_s = node.energy_joules(), node.clock.now_s
    node.begin(job_id, None, **flags)
    result = node.run_reporting(program.kernel, program.device, seconds, job_id)
    after, length_s = node.energy_joules(), node.clock.now_s - begin_s
    node.end(job_id)
    if policy == BASELINE:
        draw.update({name: (after[name] - before[name]) / length_s for name in after})
    tuning = getattr(node.records()[job_id], "tuning", None)
    joules = result.energy_joules["node"]
    return PolicyRun(program.kernel, program.machine, policy, result.seconds, joules, tuning)


def _cap_flags(device: str, draw: Mapping[str, float]) -> dict[str, str]:
    if device == "gpu":
        return {"gpu_cap": f"{CAP_SHARE * draw['gpu[0]']:.0f}"}
    return {"cap": f"{CAP_SHARE * (draw['cpu'] + draw['dram']):.0f}"}


def table(runs: Sequence[PolicyRun]) -> str:
    """Return a Markdown table of changes relative to `monitor`.

    The table shows the change of time, energy and EDP of each run.
    """
    policies = list(dict.fromkeys(run.policy for run in runs))
    lines = [
        f"| program | {' | '.join(policies)} |",
        f"|---|{'---|' * len(policies)}",
    ]
    for kernel, machine in dict.fromkeys((run.kernel, run.machine) for run in runs):
        own = {run.policy: run for run in runs if (run.kernel, run.machine) == (kernel, machine)}
        base = own[BASELINE]
        cells = [f"{base.seconds:.0f} s, {base.joules / base.seconds:.0f} W"]
        cells += [_cell(own[policy], base) for policy in policies if policy != BASELINE]
        lines.append(f"| {kernel} on {machine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(run: PolicyRun, base: PolicyRun) -> str:
    time, energy = run.seconds / base.seconds, run.joules / base.joules
    return " / ".join(_percent(ratio) for ratio in (time, energy, time * energy))


def _percent(ratio: float) -> str:
    text = f"{100 * (ratio - 1):+.1f}"
    return "0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")
