"""Benchmark of the loop in which advice of the diagnosis is applied to jobs and then verified.

The jobs are synthetic training programs with one known (planted) cause of lost time. Each program is
diagnosed, and the best proposal is applied to its parameters. Then a model of training programs
simulates up to three next runs of the same work, with 1.5 % noise. Three earlier runs are known.
slurm-energy then decides whether the adjustments are kept or undone. In the second part of the
benchmark, the true bottleneck differs from the planted cause. The advice then does not help, and the
adjustments must be undone. The functions of slurm-energy make all decisions, and the model only
supplies observations. True ratios are computed by the model without noise of the time.

The benchmark prints a table per part, and the following results (claims) for each range of seeds.
`CLAIM loop_improved ratio=... target=>=0.8`: the share of jobs whose adjustments were kept and truly
helped, among all jobs of the first part with an applied adjustment. `CLAIM
loop_improved_of_changeable`: the same share among all jobs of the first part, except those that no
setting of a job improves. `CLAIM loop_undone ratio=... target=>=1`: the share of jobs whose
adjustments were undone, among all jobs of both parts that did not improve. The constants were chosen
on seeds 0 to 9 and 4000 to 4003.
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from claims import Claim, at_least, publish

from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import diagnose
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.diagnosis.trials.observed_figures import observed_figures
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal, propose
from slurm_energy.diagnosis.trials.run_figures import RunFigures
from slurm_energy.diagnosis.trials.verification import (
    MAX_NOISY_RUNS,
    TrialDecision,
    TrialVerdict,
    decide,
)
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape
from slurm_energy_lab.diagnosis_corpus.next_run import (
    EPOCHS,
    RUN_NOISE,
    Effect,
    NextRun,
    next_run,
    observe_run,
    training_loop,
)
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED, ShapedBuilder
from slurm_energy_lab.diagnosis_corpus.training_loop import Loop

EARLIER_RUNS = 3
PERMITTED = AdjustmentPermissions.everything()
"""With the default slowdown, 3 %."""


def locked_loader(adjusted: JobShape, original: JobShape) -> None:
    """Change a simulated training job so that more loader processes do not speed up its loader.

    A lock limits the loader to the same number of samples per second.
    """
    before, after = training_loop(original), training_loop(adjusted)
    after.sample_cpu_s *= _parallel(after) / _parallel(before)


def larger_steps(adjusted: JobShape, original: JobShape) -> None:
    """Simulate a program whose fixed time per training step grows in proportion to the batch size.

    For such a program, the advice to use a larger batch does not help.
    """
    before, after = training_loop(original), training_loop(adjusted)
    after.launch_s *= after.batch / before.batch


def growing_checkpoints(adjusted: JobShape, original: JobShape) -> None:
    """Make checkpoints longer in proportion to their interval, so that their total time stays equal.

    This models checkpoints that contain all results since the previous checkpoint.

    Args:
        adjusted: parameters of the adjusted run; changed in place.
        original: parameters of the original run.
    """
    adjusted.checkpoint_s *= adjusted.checkpoint_every_s / original.checkpoint_every_s


def slow_bus(adjusted: JobShape, original: JobShape) -> None:
    """Undo the benefit of pinned memory in a synthetic job whose copies are limited by the bus.

    In such a job, pinned memory makes the copies no faster.
    """
    training_loop(adjusted).copy_bytes_per_s = training_loop(original).copy_bytes_per_s


def needed_gpus(adjusted: JobShape, original: JobShape) -> None:
    """Make a simulated adjusted run fail, because the program runs out of memory on fewer GPUs.

    The diagnosis has advised to use fewer GPUs. This adjustment must then be undone.
    """
    adjusted.state = "OUT_OF_MEMORY"


def more_work(adjusted: JobShape, original: JobShape) -> None:
    """Let an adjusted job do more work in the time that was idle before.

    The idle time at the end is removed. In exchange, each sample takes 1.4 times as long on the GPU. The
    adjustment therefore does not help.
    """
    loop = training_loop(adjusted)
    adjusted.tail_s, loop.sample_gpu_s, loop.launch_s = 0.0, loop.sample_gpu_s * 1.4, loop.launch_s * 1.4


def one_epoch(adjusted: JobShape, original: JobShape) -> None:
    """Simulate a program that reads its data set only once, so that the advice does not help.

    The advised local copy has to read the whole data set before the first step.
    """
    adjusted.startup_s = original.startup_s + EPOCHS * (adjusted.startup_s - original.startup_s)


def needed_exchange(adjusted: JobShape, original: JobShape) -> None:
    """Simulate that an adjustment of the gradient accumulation has no effect.

    In this synthetic job the ranks exchange activations, not only gradients. Gradient accumulation
    therefore does not reduce the number of exchanges. The function gives the adjusted job the
    accumulation of the original job.
    """
    training_loop(adjusted).accumulation = training_loop(original).accumulation


def indivisible_work(adjusted: JobShape, original: JobShape) -> None:
    """Undo that an adjustment moved work from one rank of a job to another rank.

    The function is for jobs whose work cannot be moved between ranks.

    Args:
        adjusted: parameters of the job after the adjustment. The function changes them.
        original: parameters of the job before the adjustment.
    """
    training_loop(adjusted).is_balanced = training_loop(original).is_balanced


def limited_otherwise(adjusted: JobShape, original: JobShape) -> None:
    """Simulate advice about the GPU clock that has no effect.

    The adjusted job keeps the GPU clock of the original job, as if another limit determined the clock.
    """
    adjusted.gpu_clock, training_loop(adjusted).clock = original.gpu_clock, training_loop(original).clock


ADVERSE: dict[str, Effect] = {
    "one-worker": locked_loader,
    "two-workers": locked_loader,
    "few-cpus": locked_loader,
    "tiny-batch": larger_steps,
    "slow-copies": slow_bus,
    "frequent-checkpoints": growing_checkpoints,
    "unused-gpus": needed_gpus,
    "idle-tail": more_work,
    "idle-tail-power-only": more_work,
    "oversubscribed-workers": locked_loader,
    "slow-storage": one_epoch,
    "slow-network-storage-no-pressure": one_epoch,
    "slow-network": needed_exchange,
    "slow-network-no-steps": needed_exchange,
    "straggler": indivisible_work,
    "uneven-work-no-steps": indivisible_work,
    "low-clock": limited_otherwise,
}
"""True bottlenecks that make the advice about a kind of job useless."""


UNCHANGEABLE = {
    "gpu-memory-leak": "costs neither time nor energy before the memory is exhausted",
    "host-memory-leak": "costs neither time nor energy before the memory is exhausted",
    "hot-gpus": "all GPUs are too hot: the site has to cool them",
}
"""Kinds of jobs that no setting of a job improves."""


def _parallel(loop: Loop) -> float:
    return min(max(1, loop.workers), max(0.5, loop.cpus / loop.gpus))


@dataclass(frozen=True)
class LoopOutcome:
    """Result of the adjustment loop (advise, apply, verify) for one job.

    Attributes:
        name: kind of job.
        proposal: the applied adjustments; None means that no advice can be applied.
        decision: the decision of the loop; None without adjustments.
        true_ratios: true time per sample and true energy per sample with the adjustments, each
            divided by its value before the adjustments.
    """

    name: str
    proposal: AdjustmentProposal | None = None
    decision: TrialDecision | None = None
    true_ratios: tuple[float, float] = (math.inf, math.inf)

    @property
    def helps(self) -> bool:
        """Whether the true effect of the advice is good.

        The effect is good if the time or the energy per sample falls, and the slowdown is within the
        permitted slowdown.
        """
        time, energy = self.true_ratios
        return min(time, energy) < 1 - 1e-3 and time <= 1 + PERMITTED.slowdown_percent / 100

    @property
    def is_kept(self) -> bool:
        """Whether the adjustments of the job are kept after their verification."""
        return self.decision is not None and self.decision.verdict is TrialVerdict.KEPT


def play(name: str, shape: JobShape, random: Random, effect: Effect | None) -> LoopOutcome:
    """Simulate advice, adjusted runs and their verification for one job, and return the outcome."""
    before = [observed_run(next_run(shape, {}, noise(random)), random) for _ in range(EARLIER_RUNS)]
    observation = observe_run(next_run(shape, {}, noise(random)), random)
    own = figures(observation)
    changes = [one.change_set for one in diagnose(observation).advice]
    proposals = propose(changes, PERMITTED, elapsed_s=own.elapsed_s, energy_joules=own.energy_joules)
    if not proposals:
        return LoopOutcome(name)
    values = {one.kind.value: one.new for one in proposals[0].adjustments}
    after: list[RunFigures] = []
    decision = None
    while len(after) < MAX_NOISY_RUNS:
        after.append(observed_run(next_run(shape, values, noise(random), effect), random))
        decision = decide(proposals[0], [*before, own], after, PERMITTED.slowdown_percent)
        if decision.verdict is not TrialVerdict.UNDECIDED:
            break
    true = next_run(shape, {}), next_run(shape, values, effect=effect)
    return LoopOutcome(name, proposals[0], decision, true_ratios(*true))


def noise(random: Random) -> float:
    return max(0.9, random.gauss(1.0, RUN_NOISE))


def observed_run(run: NextRun, random: Random) -> RunFigures:
    return figures(observe_run(run, random))


def figures(observation: JobObservation) -> RunFigures:
    parts = observation.context.energy_joules.values()
    joules = math.fsum(joules for node in parts for joules in node.values())
    return observed_figures(observation, "1", joules or None, DiagnosisConfig())


def true_ratios(before: NextRun, after: NextRun) -> tuple[float, float]:
    """Return how an adjustment has changed the time and the energy per sample of a program.

    Each result is the value after the adjustment divided by the value before it. The ratios are infinite if
    the adjusted run failed or processed fewer samples.
    """
    if after.shape.state not in ("COMPLETED", "TIMEOUT") or after.samples < 0.99 * before.samples:
        return math.inf, math.inf
    old, new = (observed_run(run, Random(1)) for run in (before, after))
    per_sample = after.samples / before.samples
    energy = (new.energy_joules or math.inf) / (old.energy_joules or math.inf) / per_sample
    return new.elapsed_s / old.elapsed_s / per_sample, energy


def outcomes(seeds: Iterable[int], *, adverse: bool) -> Iterator[LoopOutcome]:
    """Simulate diagnosis and adjustment for each kind of training program and each seed.

    Yield the outcome of each simulation. With `adverse`, only kinds are simulated for which the advice has
    no effect or a bad effect.
    """
    for seed in seeds:
        for job in PLANTED:
            build, effect = job.build, ADVERSE.get(job.name) if adverse else None
            if isinstance(build, ShapedBuilder) and (effect or not adverse):
                start = zlib.crc32(job.name.encode()) * 1_000_003 + seed
                shape = build.shape(Random(start))
                if shape.state == "COMPLETED":
                    yield play(job.name, shape, Random(start + 1), effect)


def report(title: str, results: list[LoopOutcome]) -> None:
    """Print a table of the results, with one row for each kind of synthetic job."""
    print(f"\n{title}\n")
    print("| job | applied | kept | truly better | predicted time, energy | measured time, energy |")
    print("|---|---|---|---|---|---|")
    groups: dict[str, list[LoopOutcome]] = defaultdict(list)
    for result in results:
        groups[result.name].append(result)
    for name, group in groups.items():
        applied = [one for one in group if one.proposal is not None and one.decision is not None]
        if not applied:
            continue
        kept, helps = sum(one.is_kept for one in applied), sum(one.helps for one in applied)
        predicted = [(one.proposal.time_ratio, one.proposal.energy_ratio) for one in applied if one.proposal]
        measured = [(one.decision.time_ratio, one.decision.energy_ratio) for one in applied if one.decision]
        row = f"{len(applied)}/{len(group)} | {kept} | {helps} | {changes(predicted)} | {changes(measured)}"
        print(f"| {name} | {row} |")
    none = sorted(name for name, group in groups.items() if not any(one.proposal for one in group))
    print(f"\nwithout advice that can be applied: {', '.join(none) or 'none'}", flush=True)


def changes(ratios: Sequence[tuple[float | None, float | None]]) -> str:
    """Return the mean change of time and the mean change of energy in percent, as text."""
    texts = []
    for index in (0, 1):
        known = [ratio for pair in ratios if (ratio := pair[index]) is not None]
        texts.append(f"{100 * (fmean(known) - 1):+.0f} %" if known else "unknown")
    return ", ".join(texts)


def evaluate(first: int, count: int) -> list[Claim]:
    """Benchmark diagnosis and adjustment with simulated training jobs for a range of seeds.

    One group of jobs has planted causes of slowness. For another group, the advice does not help. Print a
    table of each group, and return the claims (results compared with targets).
    """
    seeds = range(first, first + count)
    planted = list(outcomes(seeds, adverse=False))
    report(f"planted causes, seeds from {first}", planted)
    adverse = list(outcomes(seeds, adverse=True))
    report(f"advice that does not help, seeds from {first}", adverse)
    applied = [one for one in planted if one.proposal is not None]
    changeable = [one for one in planted if one.name not in UNCHANGEABLE]
    improved = sum(one.is_kept and one.helps for one in applied)
    useless = [one for one in (*applied, *adverse) if one.proposal is not None and not one.helps]
    undone = sum(not one.is_kept for one in useless)
    for name, reason in UNCHANGEABLE.items():
        print(f"{name}: {reason}")
    print(f"\nimproved {improved} of {len(planted)} planted jobs, of which {len(changeable)} can be changed")
    print(f"improved {improved} of {len(applied)} with an applied adjustment")
    print(f"undone {undone} of {len(useless)} that did not help")
    missed = sum(one.helps and not one.is_kept for one in applied)
    print(f"undone although they helped: {missed}", flush=True)
    return [
        at_least(f"loop_improved seeds-from-{first}", improved / len(applied), 0.8),
        at_least(f"loop_improved_of_changeable seeds-from-{first}", improved / len(changeable), 0.8),
        at_least(f"loop_undone seeds-from-{first}", undone / len(useless), 1.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="jobs of each kind per range")
    parser.add_argument("--held-out", type=int, default=5000, help="first seed of the second range")
    parser.add_argument("--first-only", action="store_true", help="only the seeds for choosing")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    args = parser.parse_args()
    claims = evaluate(0, args.seeds)
    if not args.first_only:
        claims += evaluate(max(1000, args.held_out), args.seeds)
    return publish(claims, args.json)


if __name__ == "__main__":
    sys.exit(main())
