"""Tests of the step recorder, which times the phases of a program that `watch` and `phase` mark.

The program itself is not changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import slurm_energy
from slurm_energy.diagnosis.steps import RankSteps
from slurm_energy.errors import UsageError
from slurm_energy.profiling import loop_report, phases, profiler, progress, step_recorder
from slurm_energy.profiling.cuda_timer import CudaTimer, gpu_index
from slurm_energy.profiling.step_recorder import StepRecorder, process_rank
from slurm_energy.profiling.torch_phases import moved, report_loader


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> StepRecorder:
    """Return a separate recorder for the test. The recorder runs as if outside a Slurm job."""
    from slurm_energy.profiling import step_marks, torch_phases

    for name in ("SLURM_JOB_ID", "SENERGY_EVENTS_DIR", "WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "_reporter", progress.ProgressReporter())
    own = StepRecorder()
    for module in (phases, torch_phases, step_marks, step_recorder, profiler, loop_report):
        monkeypatch.setattr(module, "recorder", own)
    return own


def steps(recorder: StepRecorder) -> RankSteps:
    result = recorder.result()
    assert result is not None
    return result


def counts(recorder: StepRecorder) -> dict[str, int]:
    return {name: phase.count for name, phase in steps(recorder).phases.items()}


def test_any_loop_has_steps_and_waits(recorded: StepRecorder) -> None:
    assert list(slurm_energy.watch(range(5))) == list(range(5))
    assert list(slurm_energy.watch(iter("ab"))) == ["a", "b"]
    assert counts(recorded) == {"data": 7, "step": 7}
    result = steps(recorded)
    assert result.phases["data"].sum_s <= result.phases["step"].sum_s
    assert (result.rank, result.gpu, result.samples) == (None, None, None)


def test_watch_looks_like_the_loader() -> None:
    class Loader(list[int]):
        dataset = "data"

    watched: Any = slurm_energy.watch(Loader([1, 2, 3]))
    assert (len(watched), watched.dataset) == (3, "data")
    with pytest.raises(TypeError):
        len(slurm_energy.watch(iter(())))
    with pytest.raises(AttributeError):
        _ = watched.sampler


def test_a_step_that_is_left_does_not_count(recorded: StepRecorder) -> None:
    for item in slurm_energy.watch(range(5)):
        if item == 2:
            break
    with pytest.raises(ZeroDivisionError):
        for item in slurm_energy.watch([0]):
            1 / item
    assert counts(recorded) == {"data": 2, "step": 2}


def test_errors_of_the_loader_pass_through(recorded: StepRecorder) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(slurm_energy.watch(items()))
    assert counts(recorded) == {"data": 1, "step": 1}


def test_phases_are_blocks_and_functions(recorded: StepRecorder) -> None:
    @slurm_energy.phase("checkpoint")
    def save(value: int) -> int:
        """Save."""
        return save(value - 1) if value else 7

    @slurm_energy.phase("evaluation")
    async def evaluate() -> int:
        return 1

    @slurm_energy.phase("reading")
    def read() -> Iterator[int]:
        yield len(recorded_phases())

    def recorded_phases() -> list[str]:
        return [name for name in counts(recorded) if name == "reading"]

    assert save(2) == 7
    assert save.__doc__ == "Save."
    assert asyncio.run(evaluate()) == 1
    assert (list(read()), recorded_phases()) == ([0], ["reading"])
    both = slurm_energy.phase("mine")
    with pytest.raises(KeyError), both, both:
        raise KeyError
    assert counts(recorded) == {"checkpoint": 3, "evaluation": 1, "mine": 2, "reading": 1}
    for name in ("", 3, None):
        with pytest.raises(UsageError, match="not a valid name"):
            slurm_energy.phase(name)  # type: ignore[arg-type]


def test_threads_record_together(recorded: StepRecorder) -> None:
    def work() -> None:
        for _ in range(3000):
            with slurm_energy.phase("mine"):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(recorded) == {"mine": 9000}


def test_sections_of_the_profiler_are_phases(recorded: StepRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler._process, "reader", profiler.NullEnergyReader())
    with slurm_energy.profile("solve"):
        pass
    assert counts(recorded) == {"solve": 1}


def test_an_error_of_ours_is_logged_once_and_ends_the_record(
    recorded: StepRecorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step_recorder, "StepStatistics", None)
    with caplog.at_level(logging.WARNING):
        assert len(list(slurm_energy.watch(range(10)))) == 10
        assert recorded.result() is None
    assert [record for record in caplog.messages if "not recorded" in record] == caplog.messages[:1]


def test_the_document_is_there_once_per_news(recorded: StepRecorder) -> None:
    assert recorded.document(9000) is None
    recorded.add("step", 0, 5)
    assert recorded.document(9000) is not None
    assert recorded.document(9000) is None


def test_a_busy_recorder_delays_nothing(recorded: StepRecorder) -> None:
    """Recording a step does not block while another function holds the recorder's lock.

    A signal handler may record a step in the same thread that already holds the lock. Waiting for the
    lock would then never end.
    """
    with recorded._lock:
        recorded.add("step", 0, 5)
        assert recorded.result() is None
    assert counts(recorded) == {"step": 1}


def test_a_forked_child_starts_again(recorded: StepRecorder) -> None:
    recorded.add("step", 0, 5)
    recorded.reset_after_fork()
    assert recorded.result() is None
    recorded.add("mine", 0, 5)
    assert counts(recorded) == {"mine": 1}


def test_short_steps_wait_in_bounded_memory(recorded: StepRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_report, "_MAX_STEPS", 10)
    longest = max(len(recorded._waiting) for _ in slurm_energy.watch(range(100)))
    assert longest <= 10
    assert counts(recorded) == {"data": 100, "step": 100}


def test_without_a_working_directory_only_the_event_file_is_missing(
    recorded: StepRecorder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SENERGY_EVENTS_DIR", "events")
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        assert len(list(slurm_energy.watch(range(3)))) == 3
    assert "events are not written" in caplog.text
    assert counts(recorded) == {"data": 3, "step": 3}


def test_hints_are_bounded(recorded: StepRecorder) -> None:
    for number in range(100):
        recorded.hint(f"mine {number}", number)
    recorded.hint("mine 0", "x" * 65)
    recorded.hint("mine 1", math.inf)
    recorded.hint("mine 2", None)
    recorded.hint("mine 3", "text")
    recorded.add("step", 0, 5)
    hints = steps(recorded).hints
    assert len(hints) == 32
    assert list(hints.values())[:4] == [0, 1, 2, "text"]


def loader(**fields: Any) -> Any:
    settings = {"batch_size": 4, "num_workers": 2, "pin_memory": True, "persistent_workers": False}
    return SimpleNamespace(
        **{**settings, "drop_last": False, "sampler": range(10), "dataset": range(11), **fields}
    )


def test_settings_of_the_loader_are_reported(recorded: StepRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    torch = SimpleNamespace(get_num_threads=lambda: 3)
    monkeypatch.setitem(step_recorder.sys.modules, "torch", torch)
    report_loader(loader())
    recorded.add("step", 0, 5)
    hints = dict(steps(recorded).hints)
    assert isinstance(spent_s := hints.pop("process_cpu_s"), float) and spent_s >= 0
    assert hints == {
        "compute_threads": 3,
        "batch_size": 4,
        "num_workers": 2,
        "pin_memory": True,
        "persistent_workers": False,
        "dataset_samples": 11,
        "world_size": 8,
    }


@pytest.mark.parametrize(
    ("fields", "samples"),
    [
        ({}, 10),
        ({"drop_last": True}, 12),
        ({"sampler": None}, 12),
        ({"sampler": range(100)}, 12),
        ({"batch_size": None}, None),
        ({"batch_size": True}, None),
    ],
)
def test_samples_of_batches(recorded: StepRecorder, fields: dict[str, Any], samples: float | None) -> None:
    class Loader(list[int]):
        """Loader of three batches."""

    one = Loader([1, 2, 3])
    one.__dict__.update(vars(loader(**fields)))
    assert list(slurm_energy.watch(one)) == [1, 2, 3]
    assert steps(recorded).samples == samples


@pytest.mark.parametrize(("workers", "starts"), [(2, 3), (0, None)])
def test_waits_for_the_first_batches_of_epochs_are_counted(
    recorded: StepRecorder, workers: int, starts: int | None
) -> None:
    class Loader(list[int]):
        """Data loader with two batches, for the test."""

    one = Loader([1, 2])
    one.__dict__.update(vars(loader(num_workers=workers)))
    for _ in range(3):
        assert list(slurm_energy.watch(one)) == [1, 2]
    found = steps(recorded)
    assert found.hints.get("loader_starts") == starts
    assert found.phases["data"].count == 6
    wait_s = found.hints.get("loader_start_s", 0.0)
    assert isinstance(wait_s, float) and 0 <= wait_s <= found.phases["data"].sum_s + 0.001


def test_a_loader_whose_settings_fail_is_watched(recorded: StepRecorder) -> None:
    class Loader(list[int]):
        """Data loader whose properties raise an error when they are read."""

        @property
        def batch_size(self) -> int:
            raise RuntimeError

        sampler = dataset = num_workers = batch_size

    assert list(slurm_energy.watch(Loader([1, 2]))) == [1, 2]
    assert counts(recorded) == {"data": 2, "step": 2}


class Tensor:
    """Stand-in for a PyTorch tensor that records to which device it was moved."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned, self.moves = pinned, []

    def is_pinned(self) -> bool:
        return self.pinned

    def to(self, device: str, **options: bool) -> Tensor:
        self.moves.append((device, options))
        return self


def test_batches_are_moved_with_their_structure(recorded: StepRecorder) -> None:
    plain, pinned = Tensor(), Tensor(pinned=True)
    batch = {"x": [plain, (pinned, "text")], "n": 3}
    assert moved(batch, "cuda") == batch
    assert plain.moves == [("cuda", {})]
    assert pinned.moves == [("cuda", {"non_blocking": True})]
    assert list(slurm_energy.watch([plain], device="cpu")) == [plain]
    assert counts(recorded) == {"data": 1, "copy": 1, "step": 1}


def test_the_rank_of_torch_is_that_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5)
    assert process_rank(3) == 3
    monkeypatch.setitem(step_recorder.sys.modules, "torch", SimpleNamespace(distributed=distributed))
    assert process_rank(3) == 5


class Gpu:
    """Stand-in for a GPU and for the events of torch.cuda. The test advances the time of the GPU."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock, self.capturing, self.done_ns = clock, False, 0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                gpu.done_ns = self.ns = max(gpu.done_ns, gpu.clock.now)

            def query(self) -> bool:
                return self.ns <= gpu.clock.now

            def elapsed_time(self, end: Event) -> float:
                return (end.ns - self.ns) / 1e6

        self.Event = Event

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    from slurm_energy.profiling import cuda_timer

    clock = SimpleNamespace(now=1000)
    clock.perf_counter_ns = lambda: clock.now
    monkeypatch.setattr(cuda_timer, "time", clock)
    return Gpu(clock)


def test_the_gpu_times_phases_without_waiting(gpu: Gpu) -> None:
    found: list[tuple[str, int, int, int]] = []
    timer = CudaTimer(gpu, lambda *phase: found.append(phase))
    begin = timer.mark()
    gpu.done_ns += 5_000_000  # the GPU works longer than the program submits
    gpu.clock.now += 1000
    timer.add("forward", begin, timer.mark())
    timer.poll()
    assert found == []
    gpu.clock.now += 6_000_000
    timer.poll()
    assert found == [("forward", 1000, 5_001_000, 1)]
    begin = timer.mark()
    gpu.done_ns += 2_000_000
    timer.add("backward", begin, timer.mark(), 7)
    gpu.clock.now += 3_000_000
    timer.poll()
    assert found[1] == ("backward", 6_002_000, 8_002_000, 7)


def test_nothing_is_recorded_while_a_graph_is_captured(gpu: Gpu) -> None:
    found: list[Any] = []
    timer = CudaTimer(gpu, lambda *phase: found.append(phase))
    gpu.capturing = True
    timer.add("forward", timer.mark(), timer.mark())
    timer.poll()
    gpu.capturing = False
    timer.poll()
    assert found == []


def test_a_gpu_that_never_completes_costs_bounded_memory(gpu: Gpu) -> None:
    timer = CudaTimer(gpu, lambda *_: None)
    gpu.done_ns = 10**18
    for _ in range(2000):
        timer.add("forward", timer.mark(), timer.mark())
        timer.poll()
    assert len(timer._pending) == 512


@pytest.mark.parametrize(
    ("environment", "device", "index"),
    [
        ({}, 1, 1),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 1, 3),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,6"}, 1, 6),
        ({"CUDA_VISIBLE_DEVICES": "4,6", "SLURM_JOB_GPUS": "4,6"}, 1, 6),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "4-6"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1234"}, 0, None),
        ({"SLURM_JOB_ID": "12"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 3, None),
        ({"SLURM_STEP_GPUS": "0-3", "SLURM_JOB_ID": "1"}, 2, 2),
    ],
)
def test_the_index_of_the_gpu_on_the_node(
    environment: dict[str, str], device: int, index: int | None
) -> None:
    assert gpu_index(device, environment) == index
