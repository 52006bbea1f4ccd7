"""Tests of jobs that use nodes with different types of GPUs at once (mixed shapes).

The prediction assumes that the program of the job balances its work between the types.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from queue_examples import queue
from test_priority_shapes import cycle, node, offering

from slurm_energy import scheduling
from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority import explanation
from slurm_energy.priority.mixed_shapes import balanced_split, kinds_of
from slurm_energy.priority.offered_shapes import OfferedShapeTable, choice_reason, choose_shapes
from slurm_energy.slurm.queue.gpu_request import GpuRequest, scontrol_fields
from slurm_energy.training.shares import RankCost, divide

MIXED = GpuShape("a100+h100", 4)
OFFERS = "gpu:a100:4,gpu:h100:4,gpu:a100+h100:4"


def two_nodes(text: str = OFFERS, **more):
    return queue(offering(text, nodes=2, cpus=2, gpus=8, **more))


def cluster(a100: int, h100: int):
    """Return four nodes with 4 GPUs each, two of each type.

    The arguments are the numbers of free nodes of each type.
    """
    return [
        node(f"{kind}{number}", kind, 4, 4 if number < free else 0)
        for kind, free in (("a100", a100), ("h100", h100))
        for number in range(2)
    ]


def shape_rows(snapshot) -> tuple[OfferedShapeTable, dict[str, int]]:
    shapes = snapshot.shapes
    assert isinstance(shapes, OfferedShapeTable)
    return shapes, {shapes.text(row): row for row in range(len(shapes.shape))}


def test_types_of_a_shape() -> None:
    assert kinds_of("a100+h100", {"a100", "h100"}) == ("a100", "h100")
    assert kinds_of("a100+h100", {"a100+h100"}) == ("a100+h100",), "some node has a type of this name"
    for name in ("a100", "a100+", "+a100", "a100++h100", "a100+a100"):
        assert kinds_of(name, {"a100"}) == (name,)


def test_a_mixed_shape_starts_where_no_type_alone_fits() -> None:
    snapshot = cycle(two_nodes(), cluster(a100=1, h100=1))
    (choice,) = choose_shapes(snapshot, scheduling.policy(snapshot.policy).rank)
    assert (choice.shape, choice.starts_now) == (MIXED, True)
    shapes, rows = shape_rows(snapshot)
    assert [shapes.fits_now(rows[text]) for text in rows] == [False, False, True]


def test_the_prediction_is_that_of_the_balanced_split() -> None:
    snapshot = cycle(two_nodes(), cluster(a100=1, h100=1))
    shapes, rows = shape_rows(snapshot)
    slow, fast, mixed = (rows[text] for text in OFFERS.split(","))
    times, watts = shapes.table.time_s, shapes.table.power_watts
    assert times[mixed] == pytest.approx(2.0 / (1.0 / times[slow] + 1.0 / times[fast]))
    assert watts[mixed] == pytest.approx((watts[slow] + watts[fast]) / 2)
    split = shapes.splits[mixed]
    assert split.work_shares["h100"] == pytest.approx(1 / (1 + times[fast] / times[slow]))
    assert split.energy_joules == pytest.approx(times[mixed] * watts[mixed])
    (choice,) = choose_shapes(snapshot, scheduling.policy(snapshot.policy).rank)
    assert f"(balanced {split.time_s:.0f} s, " in choice_reason(snapshot, choice)
    entries = explanation.Explainer(snapshot).job(0)["shapes"]
    assert [entry["work_shares"] for entry in entries] == [None, None, split.work_shares]
    assert entries[2]["energy_joules"] == pytest.approx(split.energy_joules)


def test_expected_shares_are_those_of_the_free_nodes() -> None:
    shapes, rows = shape_rows(cycle(two_nodes(), cluster(a100=2, h100=1)))
    slow, fast, mixed = (rows[text] for text in OFFERS.split(","))
    times = shapes.table.time_s
    assert times[mixed] == pytest.approx(1 / (2 / 3 / times[slow] + 1 / 3 / times[fast]))
    only_a100 = shape_rows(cycle(two_nodes(), cluster(a100=2, h100=0)))
    assert only_a100[0].splits == {}, "two free nodes of one type are no mixture"


def test_no_mixture_on_one_node_or_with_an_unknown_type() -> None:
    one = queue(offering(OFFERS))
    _, rows = shape_rows(cycle(one, cluster(a100=1, h100=1)))
    assert "gpu:a100+h100:4" not in rows
    other = cycle(two_nodes("gpu:a100:4,gpu:a100+b200:4"), cluster(a100=2, h100=2))
    assert shape_rows(other)[0].splits == {}


def test_free_gpus_of_a_mixture_are_those_of_all_types() -> None:
    shapes, _ = shape_rows(cycle(two_nodes(), cluster(a100=1, h100=1)))
    assert shapes.gpus_free["a100+h100"] == 8


def test_slurm_gets_no_type_and_excluded_nodes() -> None:
    plain = GpuRequest(True, "", 4, excluded="n9")
    wanted = {"Gres": "gpu:4", "ExcNodeList": "n9,v[1-2]"}
    for release in ((22, 5), (23, 2)):
        assert scontrol_fields(plain, "", 4, release, "v[1-2]", "n9") == wanted
    typed = GpuRequest(True, "a100", 4, excluded="n9")
    assert scontrol_fields(typed, "", 4, (23, 2), "v[1-2]", "n9") == wanted
    with pytest.raises(UsageError, match=r"before 23\.02"):
        scontrol_fields(typed, "", 4, (22, 5), "v[1-2]", "n9")


times = st.floats(1.0, 50.0)


@examples(10)
@given(counts=st.lists(st.tuples(st.integers(1, 2), times, times), min_size=2, max_size=2))
def test_the_split_is_that_of_balanced_training(counts: list[tuple[int, float, float]]) -> None:
    """A prediction splits the work of a job on two types of GPU as `training.shares` does.

    `training.shares` divides 10 million samples among the GPUs. Because it divides whole samples, the times
    and energies of the two splits differ slightly.
    """
    total, samples = sum(count for count, _, _ in counts), 10_000_000
    kinds = {f"k{number}": values for number, values in enumerate(counts)}
    split = balanced_split(
        {kind: count / total for kind, (count, _, _) in kinds.items()},
        {kind: seconds for kind, (_, seconds, _) in kinds.items()},
        {kind: watts for kind, (_, _, watts) in kinds.items()},
    )
    costs = [
        RankCost(0.0, seconds * total / samples, watts / total, 0.0)
        for count, seconds, watts in kinds.values()
        for _ in range(count)
    ]
    shares = divide(costs, samples)
    assert split.time_s == pytest.approx(shares.step_s, rel=1e-3)
    assert split.energy_joules == pytest.approx(shares.step_joules, rel=1e-3)
    assert sum(split.work_shares.values()) == pytest.approx(1.0)
