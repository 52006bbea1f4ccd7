"""Test of the power budget of one node under random orders of events.

The events are decisions, starts and ends of jobs, silence of the controller, kills of the agent, reboots,
and changes by other programs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from test_node_budget import IDLE, MIN_GPU, MIN_PACKAGE, SAFE, START, BudgetNode

pytestmark = pytest.mark.slow

FREE = {name: 400.0 if name.startswith("gpu") else 250.0 for name in IDLE}
MIN = {name: MIN_GPU if name.startswith("gpu") else MIN_PACKAGE for name in IDLE}
JOBS = {1: ("0", "4"), 2: ("1", "2"), 3: ("0-1", "1")}
"""GPUs and CPUs of the jobs; the first has the whole node."""
STEP = st.one_of(
    st.tuples(st.just("decide"), st.fixed_dictionaries({name: st.integers(50, 450) for name in IDLE})),
    st.tuples(st.just("lift one"), st.sampled_from(sorted(IDLE))),
    st.tuples(st.sampled_from(["begin", "end"]), st.sampled_from(sorted(JOBS))),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 12.0, 31.0])),
    st.tuples(st.sampled_from(["kill", "reboot", "raise", "zero"]), st.none()),
)


class Model:
    """Reference model for tests of a node's power budget.

    The model tracks an upper bound for the ceiling of each device. A ceiling is the upper bound that the
    budget sets for the device's power limit. A ceiling must never exceed its bound, because the controller
    relies on this.
    """

    def __init__(self, node: BudgetNode) -> None:
        self.node = node
        self.jobs: set[int] = set()
        self.bounds: dict[str, float | None] = dict.fromkeys(IDLE)
        self.lease_until_s: float | None = None
        self.number = self.boots = 0

    def decide(self, limits: dict[str, float | None]) -> None:
        self.number += 1
        self.node.decide(limits, number=self.number)
        for name, watts in limits.items():
            self.bounds[name] = None if watts is None else min(max(watts, MIN[name]), FREE[name])
        self.lease_until_s = self.node.clock.now + 30.0

    def begin(self, job_id: int) -> None:
        if job_id in self.jobs or 1 in self.jobs or (job_id == 1 and self.jobs):
            return  # Slurm starts no second job on a full node
        self.expire()
        gpus, cpus = JOBS[job_id]
        names = [f"gpu{index}" for index in ((0, 1) if "-" in gpus else (int(gpus),))]
        if job_id == 1:
            names += ["package-0", "package-1"]
        used = {
            f"gpu{i}" for job in self.jobs for i in ((0, 1) if "-" in JOBS[job][0] else (int(JOBS[job][0]),))
        }
        self.node.begin(job_id, gpus=gpus, cpus=cpus)
        self.jobs.add(job_id)
        for name in set(names) - used if self.lease_until_s is not None else ():
            start = min(START[name], SAFE[name]) if self.is_safe else START[name]
            if (bound := self.bounds[name]) is not None:
                self.bounds[name] = max(bound, start)

    def end(self, job_id: int) -> None:
        if job_id in self.jobs:
            self.jobs.discard(job_id)
            self.node.end(job_id)

    @property
    def is_safe(self) -> bool:
        return self.lease_until_s is not None and self.node.clock.now > self.lease_until_s

    def expire(self) -> None:
        if self.is_safe:
            self.lower_to_safe()

    def lower_to_safe(self) -> None:
        for name, bound in self.bounds.items():
            self.bounds[name] = SAFE[name] if bound is None else min(bound, SAFE[name])

    def reboot(self) -> None:
        self.boots += 1
        self.node.reboot(f"boot-{self.boots}")
        self.jobs.clear()
        if self.lease_until_s is not None:
            self.lower_to_safe()
            self.lease_until_s = -1.0

    def zero(self) -> None:
        self.node.decide({}, number=0)
        self.bounds = dict.fromkeys(IDLE)
        self.lease_until_s = None

    def check(self) -> None:
        held = self.node.limits()
        for name, bound in self.bounds.items():
            assert held[name] <= (FREE[name] if bound is None else bound), name
        for device in self.node.poll().devices:
            bound = self.bounds[device.name]
            if device.ceiling_watts is not None:
                assert bound is not None
                assert held[device.name] <= device.ceiling_watts <= bound
            else:
                assert bound is None


@examples(15)
@given(steps=st.lists(STEP, max_size=14))
def test_no_order_of_events_exceeds_what_the_controller_relies_on(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = BudgetNode(Path(folder))
        model = Model(node)
        for action, value in steps:
            if action == "decide":
                model.decide({name: float(watts) for name, watts in value.items()})
            elif action == "lift one":
                model.decide({value: None})
            elif action == "wait":
                node.use(value)
            elif action == "kill":
                node.kill()
            elif action == "raise":  # another program, which the next poll overrules
                node.gpus[0].value = "400000"
                node.poll()
            else:
                getattr(model, action)(*([] if value is None else [value]))
            model.expire()
            model.check()
        model.zero()
        for job_id in list(model.jobs):
            model.end(job_id)
        assert node.tree.snapshot() == node.original
        assert [limit.value for limit in node.gpus] == ["400000"] * 2
        assert not node.state.journal.entries
        node.die()
