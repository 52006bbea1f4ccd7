"""Test the order in which our hooks for PyTorch, Lightning and transformers are called.

The tests replace these frameworks by simple stand-ins. `tests/unit/test_real_frameworks.py` tests the hooks
with the real frameworks.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import slurm_energy
from slurm_energy.profiling import loop_report, phases, progress, step_marks, step_recorder, torch_phases
from slurm_energy.profiling.step_recorder import StepRecorder
from slurm_energy.profiling.torch_phases import TorchPhases, _Hook


class Handle:
    """Stand-in for the handle that PyTorch returns for a registered hook."""

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        self.id = id(hook)
        hooks[self.id] = hook
        self.hooks_dict_ref = lambda: hooks

    def remove(self) -> None:
        self.hooks_dict_ref().pop(self.id, None)


class Tensor:
    """Fake tensor with a gradient, for tests of hooks."""

    requires_grad = True

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def register_hook(self, hook: Any) -> None:
        self.hooks.append(hook)

    def backward(self) -> None:
        for hook in self.hooks:
            assert hook(self) is None
        while ENGINE:
            ENGINE.pop(0)()


ENGINE: list[Callable[[], None]] = []


class Model:
    """Model that returns a dict with one tensor."""

    training = True

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}

    def register_forward_pre_hook(self, hook: Any) -> Handle:
        return Handle(self.before, hook)

    def register_forward_hook(self, hook: Any) -> Handle:
        return Handle(self.after, hook)

    def parameters(self) -> Iterator[Any]:
        yield SimpleNamespace(device=SimpleNamespace(type="cpu"))

    def __call__(self, batch: Any) -> dict[str, Any]:
        output = {"text": "x", "logits": [Tensor()]}
        for hook in self.before.values():
            assert hook(self, (batch,)) is None
        for hook in self.after.values():
            assert hook(self, (batch,), output) is None
        return output


class Optimizer:
    """Stand-in for a PyTorch 2 optimizer, with hooks that run before and after each step."""

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}

    def register_step_pre_hook(self, hook: Any) -> Handle:
        return Handle(self.before, hook)

    def register_step_post_hook(self, hook: Any) -> Handle:
        return Handle(self.after, hook)

    def step(self) -> None:
        for hook in (*self.before.values(), *self.after.values()):
            assert hook(self, (), {}) is None


class OldOptimizer:
    """Test substitute for an optimizer of PyTorch 1, which has no hooks."""

    steps = 0

    def step(self) -> None:
        self.steps += 1


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    engine = SimpleNamespace(queue_callback=ENGINE.append)
    variable = SimpleNamespace(_execution_engine=engine)
    module = SimpleNamespace(
        Tensor=Tensor,
        autograd=SimpleNamespace(Variable=variable),
        distributed=SimpleNamespace(is_available=lambda: False),
        cuda=SimpleNamespace(is_available=lambda: False),
    )
    monkeypatch.setitem(sys.modules, "torch", module)  # type: ignore[arg-type]
    return module


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which a test recorder adds the names of the recorded phases, in order."""
    names: list[str] = []

    class Recorder(StepRecorder):
        def add(self, name: str, *_: Any, **__: Any) -> None:
            names.append(name)

    own = Recorder()
    own.append_step = lambda _: names.append("step")
    monkeypatch.setattr(torch_phases, "_TIMED_EVERY_NS", 0)
    for module in (phases, torch_phases, step_marks, step_recorder, loop_report):
        monkeypatch.setattr(module, "recorder", own)
    monkeypatch.setattr(loop_report, "progress", lambda n, *_: names.extend(["unit"] * n))
    return names


STEP = ["forward", "backward", "optimizer", "step"]


@pytest.mark.parametrize("kind", [Optimizer, OldOptimizer])
def test_a_plain_loop_records_all_phases(kind: type, events: list[str]) -> None:
    model, optimizer = Model(), kind()
    for batch in slurm_energy.watch([1, 2], model, optimizer):
        model(batch)["logits"][0].backward()
        optimizer.step()
    assert events == [*STEP, "unit", *STEP, "unit"]
    assert model.before == model.after == {}
    assert "step" not in vars(optimizer)
    assert getattr(optimizer, "steps", 2) == 2
    assert getattr(optimizer, "before", {}) == {}


def test_hooks_are_removed_after_break_and_error(events: list[str]) -> None:
    model = Model()
    for _ in slurm_energy.watch([1, 2], model):
        assert len(model.before) == 1
        break
    assert model.before == {}
    with pytest.raises(KeyError):
        run_with_error(model)
    assert model.before == model.after == {}


def run_with_error(model: Model) -> None:
    for _ in slurm_energy.watch([1, 2], model):
        raise KeyError


def test_evaluation_in_the_loop_is_no_forward_pass(events: list[str]) -> None:
    model = Model()
    for batch in slurm_energy.watch([1], model, Optimizer()):
        model(batch)
        model.training = False
        with slurm_energy.phase("evaluation"):
            model(batch)
            model(batch)
        model.training = True
        model(batch)
    assert events == ["forward", "evaluation", "forward", "step", "unit"]


def test_short_steps_stand_for_their_neighbours(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight of a timed step counts the neighbouring short steps that were not timed.

    If steps take 100 ms, every step is timed. If steps take 10 ms, four steps per second are timed. This
    rate also holds when one epoch ends and the next one begins.
    """
    now_ns, weights = [10**12], []
    monkeypatch.setattr(torch_phases, "_TIMED_EVERY_NS", 250_000_000)
    monkeypatch.setattr(phases, "_now", lambda: now_ns[0])
    monkeypatch.setattr(phases.recorder, "add", lambda *_, weight=1, **__: weights.append(weight))
    model, optimizer = Model(), Optimizer()

    def train(steps: int, step_ns: int) -> list[int]:
        weights.clear()
        for _ in slurm_energy.watch(range(steps), model, optimizer):
            assert len(model.before) == len(optimizer.after) <= 1
            model(1)["logits"][0].backward()
            optimizer.step()
            now_ns[0] += step_ns
        assert model.before == optimizer.before == {}
        return weights[::3]

    assert train(60, 10_000_000) == [1, 25, 25]
    assert train(20, 10_000_000) == [25]
    assert train(20, 100_000_000) == [6 + 1, *[1] * 17]


def test_inference_records_its_forward_passes(events: list[str]) -> None:
    model = Model()
    model.training = False
    for batch in slurm_energy.watch([1], model):
        model(batch)
    assert events == ["forward", "step", "unit"]


def test_a_recomputed_forward_pass_belongs_to_the_backward_pass(events: list[str]) -> None:
    timer = TorchPhases(model := Model(), Optimizer())
    timer.begin_step(1, 1)
    output = model(1)["logits"][0]
    output.hooks.append(lambda _: model(2) and None)
    output.backward()
    assert events == ["forward", "backward"]
    timer.detach()


def test_a_wrapped_step_of_another_library_stays(events: list[str]) -> None:
    optimizer = OldOptimizer()
    timer = TorchPhases(None, optimizer)
    optimizer.step = functools.partial(optimizer.step)  # type: ignore[method-assign]
    timer.detach()
    optimizer.step()
    assert optimizer.steps == 1
    assert events == []


def test_copies_of_a_model_have_no_hooks() -> None:
    def call(*_: Any) -> None:
        raise AssertionError

    hook = _Hook(call, None)
    for other in (copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
        assert other(1, 2, 3) is None
        assert "slurm_energy" not in type(other).__module__
    assert b"slurm_energy" not in pickle.dumps(hook)


def test_a_compiler_finds_an_empty_hook() -> None:
    calls: list[Any] = []
    _Hook(calls.append, lambda: True)(1)
    _Hook(calls.append, lambda: False)(2)
    assert calls == [2]


def test_an_error_in_a_hook_is_logged_and_changes_nothing(
    events: list[str], torch: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    del torch.autograd
    model, optimizer = Model(), Optimizer()
    with caplog.at_level(logging.WARNING):
        for batch in slurm_energy.watch([1, 2, 3], model, optimizer):
            model(batch)["logits"][0].backward()
            optimizer.step()
    assert len(caplog.messages) == 1
    assert (
        events
        == ["forward", "optimizer", "step", "unit"] + ["forward", "optimizer", "step"] * 2 + ["unit"] * 2
    )
    with caplog.at_level(logging.WARNING):
        assert list(slurm_energy.watch([1], model=object())) == [1]
    assert "not recorded" in caplog.messages[-1]


def imported(monkeypatch: pytest.MonkeyPatch, name: str, module: str, **names: Any) -> ModuleType:
    """Import a module with callbacks for a training framework, and return the module.

    The framework is replaced by a test substitute.
    """
    own = f"slurm_energy.profiling.{name}"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, own, raising=False)
    callbacks = importlib.import_module(own)
    monkeypatch.delitem(sys.modules, own)
    if hasattr(callbacks, "recorder"):
        monkeypatch.setattr(callbacks, "recorder", step_marks.recorder)
    return callbacks


class Trainer:
    """Lightning's trainer, as far as the callback uses it."""

    estimated_stepping_batches, accumulate_grad_batches = 100, 4
    train_dataloader = SimpleNamespace(batch_size=8, num_workers=0)

    def __init__(self) -> None:
        self.strategy = SimpleNamespace(batch_to_device=lambda batch: batch)

    def save_checkpoint(self, path: str) -> str:
        return path


def test_lightning_hooks_in_order(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace())  # type: ignore[arg-type]
    lightning = imported(monkeypatch, "lightning", "lightning.pytorch", Callback=object)
    calls: list[Any] = []
    monkeypatch.setattr(loop_report, "progress", lambda n, total: calls.append((n, total)))
    starts: list[int] = []
    monkeypatch.setattr(step_marks.recorder, "add_loader_start", starts.append)
    trainer, callback = Trainer(), lightning.LightningWatch()
    strategy = trainer.strategy

    callback.on_validation_start(trainer)  # the sanity check
    callback.on_validation_end(trainer)
    callback.on_train_start(trainer, SimpleNamespace(device="cpu"))
    callback.on_train_epoch_start(trainer)
    for _ in range(2):
        assert strategy.batch_to_device(5) == 5
        callback.on_train_batch_start(trainer, None, 5, 0)
        callback.on_before_zero_grad(trainer)
        callback.on_before_backward(trainer)
        callback.on_after_backward(trainer)
        callback.on_before_optimizer_step(trainer)
        callback.on_train_batch_end(trainer, None, None, 5, 0)
    callback.on_validation_start(trainer)
    strategy.batch_to_device(5)
    callback.on_validation_end(trainer)
    assert trainer.save_checkpoint("path") == "path"
    callback.on_train_end(trainer)
    assert events == ["copy", "forward", "backward", "optimizer", "step"] * 2 + [
        "evaluation",
        "checkpoint",
    ]
    assert calls == [(1, 400), (1, 400)]  # the second one at the end
    assert len(starts) == 1
    assert step_marks.recorder._hints["marks_checkpoints"] is True
    assert vars(trainer).keys() == {"strategy"}
    assert strategy.batch_to_device(6) == 6
    assert len(events) == 12


def test_lightning_without_a_strategy_only_logs(
    monkeypatch: pytest.MonkeyPatch, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace())  # type: ignore[arg-type]
    lightning = imported(monkeypatch, "lightning", "lightning.pytorch", Callback=object)
    callback = lightning.LightningWatch()
    with caplog.at_level(logging.WARNING):
        callback.on_train_start(SimpleNamespace())
        for _ in range(3):
            callback.on_train_batch_start()
            callback.on_train_batch_end()
    assert len(caplog.messages) == 1
    assert events == []


def test_transformers_events_in_order(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    huggingface = imported(monkeypatch, "huggingface", "transformers", TrainerCallback=object)
    calls: list[Any] = []
    monkeypatch.setattr(loop_report, "progress", lambda n, total: calls.append((n, total)))
    arguments = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=2, world_size=1)
    state, model, optimizer = SimpleNamespace(max_steps=9), Model(), Optimizer()
    wrapper = SimpleNamespace(optimizer=optimizer)
    starts: list[int] = []
    monkeypatch.setattr(step_marks.recorder, "add_loader_start", starts.append)
    callback = huggingface.TrainerWatch()

    callback.on_train_begin(arguments, state, None, model=model, optimizer=wrapper, train_dataloader=[])
    callback.on_epoch_begin(arguments, state, None)
    for number in range(2):
        callback.on_step_begin(arguments, state, None)
        for batch in range(2):
            model(batch)["logits"][0].backward()
        optimizer.step()
        callback.on_step_end(arguments, state, None)
        callback.on_log(arguments, state, None)
        if number:
            model.training = False
            model(1)
            callback.on_prediction_step(arguments, state, None)
            callback.on_log(arguments, state, None)
            callback.on_evaluate(arguments, state, None)
            callback.on_save(arguments, state, None)
    callback.on_epoch_end(arguments, state, None)
    callback.on_train_end(arguments, state, None)
    step = ["forward", "backward", "forward", "backward", "optimizer", "step"]
    assert events == step * 2 + ["evaluation", "checkpoint"]
    assert calls == [(1, 9), (1, 9)]
    assert len(starts) == 1
    assert step_marks.recorder._hints["marks_checkpoints"] is True
    assert model.before == optimizer.before == {}


@pytest.mark.parametrize("name", ["lightning", "huggingface"])
def test_a_missing_framework_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, f"slurm_energy.profiling.{name}", raising=False)
    with pytest.raises(ImportError, match="is not installed"):
        importlib.import_module(f"slurm_energy.profiling.{name}")


def test_stand_ins_leave_nothing_behind() -> None:
    assert ENGINE == []
    assert progress._reporter is not None
