"""Tests of the time that DistributedDataParallel spends on communication.

The training loop is measured with `slurm_energy.watch`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from test_watch_callbacks import ENGINE, STEP, Model, torch

import slurm_energy
from slurm_energy.profiling import loop_report, phases, step_marks, step_recorder, torch_phases
from slurm_energy.profiling.step_recorder import StepRecorder

__all__ = ["torch"]


def test_the_wait_for_gradients_of_other_ranks_is_communication(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait of a rank for the gradients of other ranks counts as communication.

    DistributedDataParallel waits in a callback at the end of the backward pass.
    """

    class Parallel(Model):
        def __call__(self, batch: Any) -> dict[str, Any]:
            output = super().__call__(batch)
            output["logits"][0].register_hook(lambda _: ENGINE.append(lambda: times.append("wait")))
            return output

    times: list[str] = []
    own = StepRecorder()
    own.append_step = lambda _: None
    own.add = lambda name, *_, **__: times.append(name)  # type: ignore[method-assign]
    torch.nn = SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=Parallel))
    monkeypatch.setattr(torch_phases, "_TIMED_EVERY_NS", 0)
    for module in (phases, torch_phases, step_marks, step_recorder, loop_report):
        monkeypatch.setattr(module, "recorder", own)
    for kind, expected in ((Parallel, ["forward", "backward", "wait", "communication"]), (Model, STEP[:2])):
        times.clear()
        model = kind()
        for batch in slurm_energy.watch([1], model):
            model(batch)["logits"][0].backward()
        assert times == expected
