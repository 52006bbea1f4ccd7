"""The jobs of the live experiment: the job mix of the thesis, 80 times as fast. Pure functions.

Arrivals, models and their lengths come from the scenario of the thesis's protocol (5.5.1). Each model is
replaced by a compute kernel of the lab. The time and watts of the kernel on A100 and H100 are close to those
that the predictor (oracle) states for the model:

| model | oracle: A100 to H100 time, energy | kernel of the lab |
|---|---|---|
| ViT-B | 3.35, 0.53 | train: 3.1, 0.53 |
| ALBERT | 2.2, 0.71 | triad: 2.15, 0.78 |
| ResNet-50 | 2.2, 0.60 | spmv: 2.2, 0.76 |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.model_predictions import predict
from slurm_energy.simulator.workloads.workload_generator import generate
from slurm_energy_lab.cluster.nodes_file import NodeSpec
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.model.kernels import kernel_spec
from slurm_energy_lab.model.problem_size import full_speed_seconds

_THESIS = Path(__file__).parents[1] / "thesis" / "scenarios" / "thesis-pareto.toml"
SPEEDUP = 80.0
"""Ratio of the thesis' time to the time of this experiment: ten hours become 7.5 minutes."""
UNITS = 8
NODES = (
    NodeSpec("a1", "epyc-7513-a100", {"gpu.count": UNITS}),
    NodeSpec("h1", "xeon-h100", {"gpu.count": UNITS}),
)
KINDS = ("a100", "h100")
"""GRES types of the GPUs of these nodes, in the order of the nodes."""
KERNELS = {"ViT-B": "train", "ALBERT": "triad", "ResNet-50": "spmv"}
RIGID_GPUS = 4
"""Number of GPUs that users request without alternatives; thesis, 5.5.2.1, as in `thesis-pareto`."""
BATCH = 128
CPUS = 2
LIMIT_MINUTES = 3
_HOME = {"a100": 0.5, "h100": 0.5}
"""Probability of each kind in the users' requests: there are equal numbers of GPUs of both kinds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of GPUs of one kind that a job requests."""

    kind: str
    gpus: int

    @property
    def text(self) -> str:
        """The GPU shape (kind and number of GPUs) in the syntax of sbatch."""
        return f"gpu:{self.kind}:{self.gpus}"


SHAPES = (Shape("a100", 4), Shape("a100", 8), Shape("h100", 2), Shape("h100", 4))
"""Shapes in which every job can run."""


class Wish(StrEnum):
    """How precisely a job of the benchmark requests the kind of its GPUs.

    Attributes:
        KIND: four GPUs of the kind that the user usually requests.
        ANY: four GPUs of any kind.
        SHAPES: four GPUs of any kind, and a list of acceptable kinds and numbers of GPUs in
            `--energy-alternatives`. The request itself names no kind, because Slurm before 23.02 cannot
            convert one kind to another.
    """

    KIND = "kind"
    ANY = "any"
    SHAPES = "shapes"


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job of the benchmark, as its user submits it.

    Attributes:
        number: number in the order of submission, from 1.
        model: model that it trains.
        submit_s: seconds after the first job.
        home: GPU shape (kind and number of GPUs) that the user usually uses.
    """

    number: int
    model: str
    submit_s: float
    home: Shape

    def sbatch(self, wish: Wish) -> list[str]:
        """Return the arguments of sbatch."""
        if wish == Wish.KIND:
            return options(self.model, self.home.text)
        offer = ",".join(shape.text for shape in SHAPES)
        flags = [f"--energy-alternatives={offer}"] if wish == Wish.SHAPES else []
        return options(self.model, f"gpu:{self.home.gpus}") + flags

    def offered(self, wish: Wish) -> list[Shape]:
        """Return the GPU shapes in which the job may run.

        A shape is a kind and a number of GPUs. The shapes depend on what the user requests (`wish`).
        """
        if wish == Wish.KIND:
            return [self.home]
        return [shape for shape in SHAPES if wish == Wish.SHAPES or shape.gpus == self.home.gpus]


def options(model: str, gres: str) -> list[str]:
    """Return the options of sbatch for a job that runs a model.

    The arguments are the name of the model and the GPUs that the job requests (`gres`).
    """
    fixed = [f"--cpus-per-task={CPUS}", f"--time={LIMIT_MINUTES}", "--output=/dev/null", "--partition=all"]
    return [f"--job-name={model}", f"--gres={gres}", *fixed]


def script(model: str) -> str:
    """Return the batch script of a job that trains a model on the live test cluster.

    The script runs a compute kernel that stands for the model. The work is divided among all allocated GPUs.
    """
    thousandths = round(1000 * size(model))
    return (
        "#!/bin/sh\n"
        f"each=$(({thousandths} / SLURM_GPUS_ON_NODE))e-3\n"
        f"exec senergy lab run {KERNELS[model]} --gpu --size $each\n"
    )


def size(model: str) -> float:
    """Return the problem size with which a kernel represents the training of a model on one GPU.

    The size is in the unit of the kernel.
    """
    profile = load_profile(NODES[0].profile, NODES[0].overrides)
    assert profile.gpu is not None
    spec = kernel_spec(KERNELS[model])
    assert spec.exponent == 1
    return a100_seconds(model) / full_speed_seconds(profile, spec, "gpu")


def a100_seconds(model: str) -> float:
    """Return the time in seconds that a model takes to train on one A100 in the live experiment.

    The predictor (oracle) predicts the time for the model of the thesis. The result is this time divided by
    `SPEEDUP`, because the jobs of the experiment are shorter by this factor.
    """
    thesis = scenarios.read(str(_THESIS))
    section = next(section for section in thesis.models if section.name == model)
    result = predict(section, thesis.kinds["a100"].hardware, 1, BATCH)
    assert result is not None
    return result.time_s / SPEEDUP


def draw(count: int, seed: int, load: float) -> list[LiveJob]:
    """Return the jobs; equal arguments give equal jobs.

    Args:
        count: number of jobs.
        seed: seed of the random numbers.
        load: arrivals as a multiple of the thesis' 0.005 jobs/s.
    """
    thesis = scenarios.read(str(_THESIS))
    rate = thesis.workload.arrivals_per_s * load
    hours = 2 * count / rate / 3600
    section = replace(thesis.workload, arrivals_per_s=rate, hours=hours)
    work = generate(replace(thesis, workload=section), seed, predict)
    kinds = np.random.default_rng(seed + 1).choice(KINDS, count, p=[_HOME[kind] for kind in KINDS])
    starts = (work.submit_s[:count] - work.submit_s[0]) / SPEEDUP
    rows = zip(work.names[:count], starts.tolist(), kinds.tolist(), strict=True)
    return [
        LiveJob(number, model, submit_s, Shape(kind, RIGID_GPUS))
        for number, (model, submit_s, kind) in enumerate(rows, 1)
    ]


def kinds_of_jobs() -> Iterator[tuple[str, Shape]]:
    """Yield every kind of job: a pair of a model and a GPU shape (numbers and types of GPUs).

    The pairs are in descending order of the predicted run time.
    """
    result = [(model, shape) for model in KERNELS for shape in SHAPES]
    yield from sorted(result, key=lambda entry: -a100_seconds(entry[0]) / entry[1].gpus)
