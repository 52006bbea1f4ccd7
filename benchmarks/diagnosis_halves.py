"""Parameters for the test programs of the diagnosis benchmark (diagnosis_programs.py).

Each test program wastes time for a known cause. There are several sets of parameters, which are called
halves. They differ in the model, the batch size and the strength of the causes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Half:
    """Parameters of one set of test programs, each of which wastes time for a known cause.

    In this benchmark, a set is called a half.

    Attributes:
        seconds: duration of the training.
        model: options of the model.
        batch: samples per step of healthy programs.
        transform_ms: CPU time per sample of a loader with too few workers.
        tiny_model: options of the model and batch of the steps that are too small.
        reads_per_s: reads that the slow disk performs in a second.
        read_kib: size of a read.
        workers: loader processes of the program that has too many loader processes.
        workers_ms: CPU time per sample of these loader processes.
        checkpoint_model: model whose checkpoints are written.
        checkpoint_every: steps between checkpoints.
        slow_batch: samples per step of the slower rank.
        nan_at: step whose loss is NaN.
        idle_s: idle time at the end of a batch job or of an interactive job.
    """

    seconds: int
    model: str
    batch: int
    transform_ms: float
    tiny_model: str
    reads_per_s: int
    read_kib: int
    workers: int
    workers_ms: float
    checkpoint_model: str
    checkpoint_every: int
    slow_batch: int
    nan_at: int
    idle_s: int


HALVES = {
    "A": Half(
        seconds=22,
        model="--model convolution --width 32",
        batch=128,
        transform_ms=8.0,
        tiny_model="--model perceptron --width 1024 --batch 2",
        reads_per_s=100,
        read_kib=64,
        workers=14,
        workers_ms=4.0,
        checkpoint_model="--model perceptron --width 1500 --batch 128",
        checkpoint_every=1,
        slow_batch=384,
        nan_at=20,
        idle_s=25,
    ),
    "B": Half(
        seconds=20,
        model="--model perceptron --width 2000",
        batch=256,
        transform_ms=3.0,
        tiny_model="--model convolution --width 64 --batch 1",
        reads_per_s=60,
        read_kib=128,
        workers=10,
        workers_ms=2.0,
        checkpoint_model="--model convolution --width 96 --batch 32",
        checkpoint_every=1,
        slow_batch=640,
        nan_at=7,
        idle_s=20,
    ),
    "C": Half(
        seconds=24,
        model="--model recurrent --width 48",
        batch=64,
        transform_ms=0.8,
        tiny_model="--model perceptron --width 250 --batch 3",
        reads_per_s=1600,
        read_kib=16,
        workers=16,
        workers_ms=2.0,
        checkpoint_model="--model perceptron --width 600 --batch 64",
        checkpoint_every=2,
        slow_batch=256,
        nan_at=60,
        idle_s=22,
    ),
    "D": Half(
        seconds=24,
        model="--model convolution --width 10",
        batch=96,
        transform_ms=0.7,
        tiny_model="--model perceptron --width 400 --batch 4",
        reads_per_s=500,
        read_kib=32,
        workers=15,
        workers_ms=1.4,
        checkpoint_model="--model perceptron --width 700 --batch 96",
        checkpoint_every=2,
        slow_batch=384,
        nan_at=50,
        idle_s=24,
    ),
    "E": Half(
        seconds=22,
        model="--model convolution --width 14",
        batch=72,
        transform_ms=0.9,
        tiny_model="--model convolution --width 6 --batch 2",
        reads_per_s=450,
        read_kib=24,
        workers=13,
        workers_ms=1.8,
        checkpoint_model="--model perceptron --width 800 --batch 80",
        checkpoint_every=2,
        slow_batch=288,
        nan_at=40,
        idle_s=23,
    ),
    "F": Half(
        seconds=22,
        model="--model convolution --width 18",
        batch=60,
        transform_ms=1.2,
        tiny_model="--model perceptron --width 450 --batch 2",
        reads_per_s=350,
        read_kib=40,
        workers=12,
        workers_ms=2.2,
        checkpoint_model="--model perceptron --width 1000 --batch 96",
        checkpoint_every=1,
        slow_batch=260,
        nan_at=35,
        idle_s=24,
    ),
    "I": Half(
        seconds=26,
        model="--model recurrent --width 64",
        batch=48,
        transform_ms=1.6,
        tiny_model="--model recurrent --width 20 --batch 3",
        reads_per_s=260,
        read_kib=48,
        workers=20,
        workers_ms=3.0,
        checkpoint_model="--model perceptron --width 900 --batch 48",
        checkpoint_every=1,
        slow_batch=300,
        nan_at=25,
        idle_s=26,
    ),
    "J": Half(
        seconds=15,
        model="--model perceptron --width 640",
        batch=112,
        transform_ms=0.6,
        tiny_model="--model convolution --width 8 --batch 3",
        reads_per_s=700,
        read_kib=20,
        workers=17,
        workers_ms=2.4,
        checkpoint_model="--model recurrent --width 500 --batch 24",
        checkpoint_every=1,
        slow_batch=420,
        nan_at=30,
        idle_s=21,
    ),
}
