"""Tests of adjustments of a program for its next run.

The tests check the permissions, the proposed adjustments, and the decision whether the adjustments helped.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.adjustment import KINDS, Adjustment, AdjustmentKind
from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.diagnosis.trials.change_set import AdvisedChange, ChangeSet
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal, propose
from slurm_energy.diagnosis.trials.run_figures import RunFigures
from slurm_energy.diagnosis.trials.verification import TrialVerdict, decide, is_unresolved
from slurm_energy.errors import UsageError

WORKERS, CPUS = AdjustmentKind.WORKERS, AdjustmentKind.CPUS_PER_TASK
MORE_WORKERS = (
    AdvisedChange(WORKERS, 8, 2, requires=CPUS, alone=3),
    AdvisedChange(CPUS, 9, 4),
)


def proposals(text, changes=MORE_WORKERS, seconds=600.0):
    """Return the adjustments that are proposed for a run of 1000 s and 1 MJ.

    `text` contains the adjustments that the user permits.
    """
    change_set = ChangeSet("data-stall-cpu", changes, seconds, 4e5, "steps")
    return propose([change_set], AdjustmentPermissions.parse(text), elapsed_s=1000.0, energy_joules=1e6)


@pytest.mark.parametrize(
    "text",
    [
        "worker=0..8",
        "workers=8..0",
        "workers=0..2000",
        "workers=",
        "workers=-1..4",
        "workers=1..\u0662",
        "workers=0..4,workers=1..2",
        "workers=0...4",
        "slowdown=101",
        "slowdown=1..3",
        "slowdown=3,slowdown=3",
        "workers,",
        "workers=1" + 400 * "0",
    ],
)
def test_malformed_permissions_are_refused_in_one_line(text):
    with pytest.raises(UsageError) as error:
        AdjustmentPermissions.parse(text)
    assert "\n" not in str(error.value)


@st.composite
def permissions(draw):
    """Return random permissions for some kinds of adjustments (hypothesis strategy)."""
    kinds = draw(st.lists(st.sampled_from(list(AdjustmentKind)), unique=True))
    ranges = {}
    for kind in kinds:
        values = st.integers(int(KINDS[kind].minimum), int(KINDS[kind].maximum))
        ranges[kind] = tuple(sorted((draw(values), draw(values))))
    return AdjustmentPermissions(ranges, draw(st.integers(0, 100)))


@given(permissions(), permissions())
@examples(60)
def test_text_of_permissions_is_read_again_and_limits_only_narrow(one, other):
    assert AdjustmentPermissions.parse(one.text) == one
    both = one.within(other)
    for kind, (low, high) in both.ranges.items():
        for value in (low, high):
            assert one.permits(kind, value)
            assert kind not in other.ranges or other.permits(kind, value)


def test_whole_change_is_proposed_with_its_gain_where_all_of_it_is_permitted():
    (proposal,) = proposals("workers,cpus-per-task=1..16")
    assert proposal.described() == "workers 2 -> 8, cpus-per-task 4 -> 9"
    assert proposal.time_ratio == pytest.approx(0.4)
    assert proposal.energy_ratio == pytest.approx(0.6)


def test_change_goes_only_as_far_as_what_it_requires_is_permitted():
    (proposal,) = proposals("workers")
    assert proposal.described() == "workers 2 -> 3"
    part = (1 / 2 - 1 / 3) / (1 / 2 - 1 / 8)  # the time lost is divided by the workers
    assert proposal.time_ratio == pytest.approx(1 - 0.6 * part)


@pytest.mark.parametrize("alone", [3, None])
def test_change_that_another_one_requires_is_not_proposed_without_it(alone):
    changes = (replace(MORE_WORKERS[0], alone=alone), MORE_WORKERS[1])
    assert not proposals("cpus-per-task", changes)
    assert not proposals("workers=0..2,cpus-per-task", changes)
    described = [one.described() for one in proposals("workers,cpus-per-task=1..8", changes)]
    assert described == ([] if alone is None else ["workers 2 -> 3"])


def test_change_within_what_needs_no_other_change_is_proposed_alone():
    (proposal,) = proposals("workers=0..3,cpus-per-task")
    assert proposal.described() == "workers 2 -> 3"


def test_change_is_limited_to_the_permitted_range_and_never_reversed():
    (proposal,) = proposals("workers=0..5,cpus-per-task")
    assert proposal.adjustments[0].new == 5
    assert not proposals("workers=0..2")
    assert not proposals("workers=0..1")
    assert not proposals("checkpoint-interval")
    assert not proposals("")


def test_change_without_a_known_old_value_is_taken_whole_or_not():
    changes = (AdvisedChange(AdjustmentKind.TIME, 90, None),)
    assert proposals("time", changes)[0].adjustments[0].sbatch_option == "--time=90"
    assert not proposals("time=1..60", changes)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"kind": "workers"},
        {"kind": "workers", "new": True},
        {"kind": "workers", "new": 4.0},
        {"kind": "workers", "new": 2000},
        {"kind": "rm -rf", "new": 1},
        {"kind": "workers", "new": 1, "old": math.nan},
        {"kind": "workers", "new": 1, "old": 10**400},
        {"kind": ["workers"], "new": 1},
    ],
)
def test_malformed_adjustments_are_refused(data):
    with pytest.raises(UsageError):
        Adjustment.from_json(data)


def run(seconds=1000.0, joules=1e6, **values):
    """Return a completed run with the given time and energy."""
    return replace(RunFigures("1", "COMPLETED", seconds, joules), **values)


PROPOSAL = AdjustmentProposal("data-stall-cpu", (Adjustment(WORKERS, 8, 2),), 0.6, 0.7, "steps")


def verdict(before, after, proposal=PROPOSAL, slowdown=3):
    """Return whether a tried adjustment helps, as a verdict of the function `decide`.

    Args:
        before: runs without the adjustment.
        after: runs with the adjustment.
        proposal: the adjustment.
        slowdown: permitted slowdown in percent.
    """
    return decide(proposal, before, after, slowdown).verdict


def test_saving_beyond_the_noise_is_kept():
    assert verdict([run()], [run(700.0, 8e5)]) is TrialVerdict.KEPT
    slower = run(1020.0, 7e5)  # within the permission
    assert verdict([run(), run()], [slower]) is TrialVerdict.KEPT
    assert verdict([run()], [run(700.0, None)]) is TrialVerdict.KEPT


def test_saving_much_smaller_than_predicted_is_kept_only_after_three_runs():
    less = run(850.0, 8.5e5)
    assert verdict([run(), run()], 2 * [less]) is TrialVerdict.UNDECIDED
    assert verdict([run(), run()], 3 * [less]) is TrialVerdict.KEPT
    # The time fell beyond its noise; the larger fall of the energy is within its noise and does not count.
    before = [run(1000.0, 7e5), run(1000.0, 1.3e6)]
    assert verdict(before, [run(850.0, 6.5e5)]) is TrialVerdict.UNDECIDED
    predicted = AdjustmentProposal("data-stall-cpu", PROPOSAL.adjustments, 0.8, 0.8, "steps")
    assert verdict([run(), run()], [less], predicted) is TrialVerdict.KEPT
    assert verdict([run(), run()], [less, run(), run(1150.0, 1.15e6)]) is TrialVerdict.UNDONE


def test_saving_that_only_the_correction_for_other_work_shows_is_undone():
    quiet = {"contended_s": 0.0, "contended_joules": 0.0}
    delayed = {"contended_s": 140.0, "contended_joules": 1.4e5}
    assert verdict(3 * [run(**quiet)], 3 * [run(**delayed)]) is TrialVerdict.UNDONE
    assert verdict(3 * [run(**quiet)], 3 * [run(860.0, 8.6e5, **quiet)]) is TrialVerdict.KEPT


def test_adjustment_that_does_not_help_is_undone():
    assert verdict([run()], [run()]) is TrialVerdict.UNDONE
    assert verdict([run(), run()], [run(1200.0, 8e5)]) is TrialVerdict.UNDONE  # too slow
    assert verdict([run(), run()], [run(900.0, 1.2e6)]) is TrialVerdict.UNDONE  # more energy
    assert verdict([run()], [run(500.0, 5e5, state="FAILED")]) is TrialVerdict.UNDONE


def test_small_saving_awaits_further_runs_and_is_undone_if_it_stays_within_the_noise():
    before = [run(980.0), run(1000.0), run(1020.0)]
    small = run(990.0, 9.9e5)
    assert verdict(before, [small]) is TrialVerdict.UNDECIDED
    assert verdict(before, [small, small]) is TrialVerdict.UNDECIDED
    assert verdict(before, [small, small, small]) is TrialVerdict.UNDONE
    precise = 5 * [run()]
    assert verdict(precise, 3 * [run(970.0, 9.7e5)]) is TrialVerdict.UNDONE
    assert verdict(precise, 3 * [run(945.0, 9.45e5)]) is TrialVerdict.KEPT


def test_delay_by_other_work_on_the_nodes_is_left_out():
    quiet = {"contended_s": 0.0, "contended_joules": 0.0}
    before = [run(**quiet), run(2000.0, 1.5e6, contended_s=1000.0, contended_joules=5e5)]
    after = [run(1400.0, 1e6, contended_s=800.0, contended_joules=4e5)]
    decision = decide(PROPOSAL, before, after, 3)
    assert decision.time_ratio == pytest.approx(0.6)
    assert decision.energy_ratio == pytest.approx(0.6)
    unknown = decide(PROPOSAL, [*before, run()], after, 3)
    assert unknown.time_ratio is not None and unknown.time_ratio > 1


def test_delays_by_other_work_raise_the_assumed_noise():
    after = run(750.0, 7.5e5)
    assert verdict([run()], [after]) is TrialVerdict.KEPT
    delayed = [  # half of each run is a delay, so that the corrections do not differ
        replace(
            one,
            elapsed_s=2 * one.elapsed_s,
            energy_joules=2 * one.energy_joules,
            contended_s=one.elapsed_s,
            contended_joules=one.energy_joules,
        )
        for one in (run(), after)
    ]
    assert verdict(delayed[:1], delayed[1:]) is TrialVerdict.UNDECIDED


def test_noise_beyond_the_predicted_gain_awaits_six_runs():
    noisy = [run(500.0, 5e5), run(700.0, 7e5), run(1000.0), run(1430.0, 1.43e6), run(2000.0, 2e6)]
    for count in range(1, 6):
        decision = decide(PROPOSAL, noisy, count * [run()], 3)
        assert decision.verdict is TrialVerdict.UNDECIDED
        assert is_unresolved(PROPOSAL, decision, len(noisy) + count)
    assert verdict(noisy, 6 * [run()]) is TrialVerdict.UNDONE
    small = decide(PROPOSAL, 3 * [run()], [run(980.0, 9.8e5)], 3)
    assert small.verdict is TrialVerdict.UNDECIDED  # the noise hides this gain, but not the predicted one
    assert not is_unresolved(PROPOSAL, small, 4)


def kept_share(true_ratio, noise):
    """Simulate 300 trials of an adjustment, and return the share of trials that keep it.

    An adjustment is a change of a value of a program. A trial compares runs with the adjustment with runs
    without it, and ends with a verdict. Here the share with the verdict `KEPT` is returned. Two runs
    without the adjustment precede each trial. While the compared runs do not suffice for a verdict,
    further runs without the adjustment may follow. `true_ratio` is the real effect of the adjustment on
    the run time.
    """
    random, kept = Random(1), 0
    for _ in range(300):
        value = lambda ratio: 1000 * ratio * math.exp(random.gauss(0, noise))  # noqa: E731
        before, after = [run(value(1), None), run(value(1), None)], []
        while True:
            after.append(run(value(true_ratio), None))
            decision = decide(PROPOSAL, before[-5:], after, 3)
            if decision.verdict is not TrialVerdict.UNDECIDED:
                break
            if is_unresolved(PROPOSAL, decision, len(before[-5:]) + len(after)):
                before.append(run(value(1), None))
        kept += decision.verdict is TrialVerdict.KEPT
    return kept / 300


@pytest.mark.parametrize(
    ("noise", "useless", "useful"), [(0.02, 0.01, 0.99), (0.05, 0.04, 0.98), (0.1, 0.07, 0.9)]
)
def test_useless_adjustments_are_rarely_kept_whatever_the_noise(noise, useless, useful):
    assert kept_share(1.0, noise) <= useless
    assert kept_share(0.6, noise) >= useful


def test_absurd_numbers_of_samples_are_compared_too():
    absurd = decide(PROPOSAL, [run(samples=1e6)], [run(samples=1e-305)], 3)  # both are figures of a user
    assert absurd.verdict is TrialVerdict.UNDONE and math.isfinite(absurd.time_ratio)
    assert math.isfinite(decide(PROPOSAL, [run(samples=1e-305)], [run(samples=1e6)], 3).time_ratio)


def test_runs_of_different_length_are_compared_per_sample_or_step():
    longer = run(1400.0, 1.6e6, samples=2000.0)
    decision = decide(PROPOSAL, [run(samples=1000.0)], [longer], 3)
    assert (decision.unit, decision.verdict) == ("sample", TrialVerdict.KEPT)
    assert decision.time_ratio == pytest.approx(0.7)
    steps = decide(PROPOSAL, [run(steps=10.0, ranks=2)], [run(1400.0, 1.6e6, steps=20.0, ranks=2)], 3)
    assert steps.unit == "step"
    batch = replace(PROPOSAL, adjustments=(Adjustment(AdjustmentKind.BATCH_SIZE, 64, 32),))
    assert decide(batch, [run(steps=10.0)], [run(steps=5.0)], 3).unit == "run"


def test_program_that_keeps_the_old_value_leaves_the_adjustment_unused():
    assert verdict([run()], [run(500.0, hints={"num_workers": 2})]) is TrialVerdict.UNUSED
    assert verdict([run()], [run(500.0, 5e5, hints={"num_workers": 8})]) is TrialVerdict.KEPT


@pytest.mark.parametrize(
    ("tail_s", "verdict"),
    [(60.0, TrialVerdict.KEPT), (0.0, TrialVerdict.UNDONE), (5.0, TrialVerdict.UNDONE)],
)
def test_shorter_time_limit_of_a_silent_program_is_kept_if_its_activity_ended_before(tail_s, verdict):
    change = AdvisedChange(AdjustmentKind.TIME, 10, None)
    change_set = ChangeSet("idle-tail", (change,), 400.0, 1e5, "activity")
    permitted = AdjustmentPermissions.everything()
    (proposal,) = propose([change_set], permitted, elapsed_s=1000.0, energy_joules=1e6)
    before = [RunFigures("1", "COMPLETED", 1000.0, 1e6, tail_s=460.0)] * 3
    after = [RunFigures("2", "TIMEOUT", 600.0, 7e5, tail_s=tail_s)]
    assert decide(proposal, before, after, 3).verdict is verdict
    unknown = [replace(run, tail_s=None) for run in before]
    assert decide(proposal, unknown, after, 3).verdict is TrialVerdict.UNDONE


def test_memory_is_an_option_in_gibibytes():
    assert Adjustment(AdjustmentKind.MEMORY, 12).sbatch_option == "--mem=12G"
    assert Adjustment(AdjustmentKind.GPU_CLOCK, 1200).sbatch_option == "--energy-gpu-clock=1200"
    assert Adjustment(AdjustmentKind.BALANCE, 1).sbatch_option is None


def test_shorter_time_limit_is_kept_only_if_the_same_work_was_reported():
    limit = replace(PROPOSAL, adjustments=(Adjustment(AdjustmentKind.TIME, 10),))
    cut = run(600.0, 7e5, state="TIMEOUT", samples=1000.0)
    assert verdict([run(samples=1000.0)], [cut], limit) is TrialVerdict.KEPT
    assert verdict([run(samples=1400.0)], [cut], limit) is TrialVerdict.UNDONE
    assert verdict([run()], [replace(cut, samples=None)], limit) is TrialVerdict.UNDONE
    assert verdict([run(samples=1000.0)], [cut]) is TrialVerdict.UNDONE


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.integers(1, 5), st.integers(1, 3))
@examples(60)
def test_kept_means_a_measured_saving_and_permitted_time(time, energy, earlier, later):
    decision = decide(PROPOSAL, earlier * [run()], later * [run(1000.0 * time, 1e6 * energy)], 3)
    assert decision.time_ratio == pytest.approx(time)
    assert decision.energy_ratio == pytest.approx(energy)
    if decision.verdict is TrialVerdict.KEPT:
        assert min(time, energy) < 1
        assert time <= 1.0301
    if min(time, energy) >= 1:
        assert decision.verdict is TrialVerdict.UNDONE
