"""Programs of the benchmark diagnosis_loop_programs.py.

Each program has a known (planted) cause of lost time. The programs exist for several sets of
parameters, which the benchmark calls halves. The sets differ in model, batch size and the strength of
the causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diagnosis_programs import SLOW_DISK

MAX_WORKERS = "workers=0..2"
"""Loader processes that a machine with two CPUs can use."""
BATCHES = "batch-size=1..64"


@dataclass(frozen=True)
class LoopCase:
    """A test program and the correct decision about the adjustment of its settings.

    The program contains a cause of lost time on purpose.

    Attributes:
        name: name of the cause.
        permission: permitted adjustments.
        options: options of training_program.py.
        expected: the correct decision: `kept`, or `undone` if the adjustment is useless.
        ranks: number of processes.
    """

    name: str
    permission: str
    options: str
    expected: str = "kept"
    ranks: int = 1


@dataclass(frozen=True)
class LoopHalf:
    """One of two sets (halves) of test programs for the benchmark of the diagnosis.

    Each program has a known cause of slowness. A value contains options of training_program.py, which
    determine the program. The two sets differ in model, batch size and strength of the causes.

    Attributes:
        reads_per_s: reads that the slow disk performs in a second.
        disk: program that reads from the slow disk: model, batch and size of a read.
        remote: program with slow reads: model, batch and latency of each read.
        workers: program whose loader has one worker: model, batch and CPU time per sample.
        compressed: program with compressed samples: model, batch and size of the samples.
        serial: program whose loader has no workers: model, batch and CPU time per sample.
        tiny: two programs with batches of a few samples.
        checkpoints: two programs with frequent checkpoints.
        growing: program whose checkpoints hold all results since the previous checkpoint.
        uneven: program with two ranks: model and the batch sizes of the ranks.
        exchange: program with two ranks and large gradients: model and batch.
    """

    reads_per_s: int
    disk: str
    remote: str
    workers: str
    compressed: str
    serial: str
    tiny: tuple[str, str]
    checkpoints: tuple[str, str]
    growing: str
    uneven: str
    exchange: str


HALVES = {
    "G": LoopHalf(
        reads_per_s=300,
        disk="--model convolution --width 12 --batch 48 --read-kib 32",
        remote="--model perceptron --width 256 --batch 32 --latency-ms 5",
        workers="--model perceptron --width 256 --batch 32 --transform-ms 4",
        compressed="--model perceptron --width 300 --batch 32 --compressed-kib 1500",
        serial="--model convolution --width 8 --batch 32 --transform-ms 2",
        tiny=("--model perceptron --width 500 --batch 2", "--model convolution --width 6 --batch 2"),
        checkpoints=(
            "--model perceptron --width 900 --checkpoint-every 1",
            "--model recurrent --width 600 --batch 8 --checkpoint-every 1",
        ),
        growing="--model perceptron --width 600 --checkpoint-every 1",
        uneven="--model convolution --width 12 --batch 64 --slow-batch 320",
        exchange="--model perceptron --width 1500 --batch 16",
    ),
    "H": LoopHalf(
        reads_per_s=220,
        disk="--model perceptron --width 256 --batch 32 --read-kib 64",
        remote="--model convolution --width 8 --batch 16 --latency-ms 4",
        workers="--model convolution --width 8 --batch 24 --transform-ms 5",
        compressed="--model recurrent --width 32 --batch 16 --compressed-kib 2500",
        serial="--model perceptron --width 400 --batch 48 --transform-ms 1.5",
        tiny=("--model perceptron --width 420 --batch 3", "--model recurrent --width 24 --batch 2"),
        checkpoints=(
            "--model perceptron --width 700 --checkpoint-every 1",
            "--model perceptron --width 1200 --batch 32 --checkpoint-every 3",
        ),
        growing="--model convolution --width 48 --batch 24 --checkpoint-every 1",
        uneven="--model convolution --width 10 --batch 48 --slow-batch 288",
        exchange="--model perceptron --width 1200 --batch 12",
    ),
    "K": LoopHalf(
        reads_per_s=260,
        disk="--model recurrent --width 40 --batch 40 --read-kib 40",
        remote="--model perceptron --width 300 --batch 24 --latency-ms 3",
        workers="--model recurrent --width 40 --batch 20 --transform-ms 4",
        compressed="--model convolution --width 6 --batch 20 --compressed-kib 2000",
        serial="--model convolution --width 10 --batch 24 --transform-ms 2.5",
        tiny=("--model perceptron --width 460 --batch 4", "--model convolution --width 8 --batch 1"),
        checkpoints=(
            "--model recurrent --width 450 --batch 16 --checkpoint-every 1",
            "--model perceptron --width 1000 --batch 48 --checkpoint-every 2",
        ),
        growing="--model perceptron --width 500 --batch 24 --checkpoint-every 1",
        uneven="--model recurrent --width 64 --batch 40 --slow-batch 240",
        exchange="--model perceptron --width 1000 --batch 8",
    ),
    "L": LoopHalf(
        reads_per_s=240,
        disk="--model convolution --width 10 --batch 32 --read-kib 48",
        remote="--model recurrent --width 32 --batch 20 --latency-ms 4",
        workers="--model perceptron --width 350 --batch 28 --transform-ms 3",
        compressed="--model perceptron --width 280 --batch 24 --compressed-kib 1800",
        serial="--model recurrent --width 48 --batch 32 --transform-ms 2",
        tiny=("--model recurrent --width 32 --batch 3", "--model perceptron --width 540 --batch 3"),
        checkpoints=(
            "--model perceptron --width 800 --batch 24 --checkpoint-every 1",
            "--model recurrent --width 500 --batch 12 --checkpoint-every 2",
        ),
        growing="--model recurrent --width 300 --batch 16 --checkpoint-every 1",
        uneven="--model convolution --width 14 --batch 56 --slow-batch 304",
        exchange="--model perceptron --width 1100 --batch 10",
    ),
}
"""Rules and programs were changed on half G, and one rule on half K after two runs of it. Halves H, K and L
were defined before their first run.
"""


def loop_cases(half: LoopHalf, folder: Path) -> list[LoopCase]:
    """Return the training programs with a fault that the benchmark diagnoses.

    Each program wastes time for a known cause. `half` is one of several sets of parameters for these
    programs; the benchmark calls each set a half. `folder` contains the data, locks and checkpoints of
    the programs.
    """
    (folder / "lock").touch()
    disk = f"--workers 2 --file {folder}/data --control-group {SLOW_DISK}/cgroup.procs"
    saved = f"--checkpoint {folder}/model.pt"
    one = "--workers 1"
    return [
        LoopCase("slow disk", "stage-data", f"{half.disk} {disk}"),
        LoopCase("slow remote storage", MAX_WORKERS, f"{half.remote} {one}"),
        LoopCase("too few workers", MAX_WORKERS, f"{half.workers} {one}"),
        LoopCase("decompression by one worker", MAX_WORKERS, f"{half.compressed} {one}"),
        LoopCase("no workers", MAX_WORKERS, f"{half.serial} --workers 0"),
        LoopCase("tiny batch", BATCHES, f"{half.tiny[0]} {one}"),
        LoopCase("tiny batch, other model", BATCHES, f"{half.tiny[1]} {one}"),
        LoopCase("checkpoint in every step", "checkpoint-interval", f"{half.checkpoints[0]} {saved}"),
        LoopCase("frequent checkpoints", "checkpoint-interval", f"{half.checkpoints[1]} {saved}"),
        LoopCase("uneven ranks", "balance", half.uneven, ranks=2),
        LoopCase("slow exchange", f"accumulation,{BATCHES}", half.exchange, ranks=2),
        LoopCase(
            "workers that wait for a lock",
            MAX_WORKERS,
            f"{half.workers} {one} --lock {folder}/lock",
            "undone",
        ),
        LoopCase(
            "checkpoints of all results since the last one",
            "checkpoint-interval",
            f"{half.growing} --growing-checkpoint {saved}",
            "undone",
        ),
    ]
