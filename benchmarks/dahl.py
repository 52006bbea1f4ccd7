"""Benchmark: the experiments of section 4 of the paper DAHL on this machine.

A neural network (CNN) is trained in several configurations. The experiments have 12 scales of images,
batches of 1 to 128, and 1 and 2 cores. The configurations are:
- PyTorch with its defaults;
- PyTorch with one OpenMP thread per core;
- PyTorch with one OpenMP thread per core that also keeps freed memory;
- two processes with DistributedDataParallel;
- the task-graph trainer, if it is installed.

Each run is stored in FOLDER/runs.jsonl as soon as it ends. The same command continues an interrupted
benchmark. Time and CPU time are measured. Energy is read from the RAPL packages if there are any.
Otherwise the energy is computed by the lab's package model from time and CPU time. The tables state
the source of the energy.

    python benchmarks/dahl.py --dir FOLDER [--quick]  # runs, claims, tables

    python benchmarks/dahl.py --dir FOLDER --page docs/training-configurations.md  # tables

If the task-graph trainer was measured, the benchmark prints these `CLAIM` lines:
- `equal_digits_of_losses_in_float64`: least agreement with PyTorch in the first steps;
- `last_loss_to_pytorch_spread`: distance of the last loss from PyTorch's last loss, divided by
  the differences among PyTorch's own configurations in float32, or by 1e-3 if that is more;
- `taskgraph_time_to_best_pytorch` and `taskgraph_scales_with_less_cpu_time`.

The benchmark needs PyTorch for --python (Debian: python3-torch). Other programs on the machine
disturb the measurements.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import dahl_findings
import dahl_report
from claims import publish

from slurm_energy_lab.model.kernels import REAL_ACTIVITY
from slurm_energy_lab.model.profile_file import load_profile

SCALES = (
    (26, 34), (32, 42), (40, 52), (50, 66), (62, 84), (76, 104),
    (94, 128), (116, 158), (144, 194), (178, 238), (220, 292), (270, 360),
)  # fmt: skip
"""Height and width. The paper prints 6 of its 12 scales; the others are interpolated."""
BATCH_SCALES = ((26, 34), (76, 104), (116, 158))
"""Scales of the experiment that varies the batch."""
BATCH, BATCHES = 32, (1, 2, 4, 8, 16, 64, 128)
CONFIGS = ("default", "openmp", "keep", "ddp", "taskgraph")
CORES = (1, 2)
REPETITIONS = 5
EQUAL_POINTS, EQUAL_STEPS = ((26, 34, 32), (116, 158, 2)), 20
"""Height, width and batch of the trainings in float64, of which each loss is compared."""
PIXELS_PER_RUN = 1_200_000
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""glibc keeps freed memory for the next step instead of returning it to the kernel, which clears it anew."""
PROFILE = "xeon-4210-rtx6000"
PROGRAM = Path(__file__).resolve().parent / "dahl_program.py"

Run = dict[str, Any]


def main() -> int:
    """Execute the benchmark runs that the folder does not contain yet, and publish all results.

    The result tables are also printed. With `--page`, nothing is executed: the function only writes the
    tables of the stored runs into the given page.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="4 scales, 2 batches, 3 repetitions")
    parser.add_argument("--configs", default=",".join(CONFIGS), help="configurations, separated by commas")
    parser.add_argument("--python", default="/usr/bin/python3", help="Python with PyTorch")
    parser.add_argument("--page", type=Path, help="only write the tables into this page")
    parser.add_argument("--json", metavar="FILE", help="also write the claims here")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    path = args.dir / "runs.jsonl"
    if args.page is None:
        try:
            _complete(path, _planned(args.quick, args.configs.split(",")), args.python)
        except KeyboardInterrupt:
            print("dahl: interrupted: the same command continues", file=sys.stderr)
            return 130
    runs = _stored(path)
    if args.page is not None:
        dahl_report.write_page(args.page, runs)
        return 0
    print("\n".join(dahl_report.page_lines(runs)))
    return publish(dahl_findings.claims(runs), args.json)


def samples_of(height: int, width: int) -> int:
    """Return the number of images per run for one image size. It is a multiple of 128.

    Runs with small images get more images, so that the runs are long enough.
    """
    return 128 * max(1, min(16, round(PIXELS_PER_RUN / (128 * height * width))))


def _planned(quick: bool, configs: Sequence[str]) -> list[Run]:
    """Return all runs, ordered by repetition, number of cores and configuration.

    The runs of one configuration are in random order.
    """
    scales = SCALES[::4] + SCALES[-1:] if quick else SCALES
    batches = (1, 128) if quick else BATCHES
    batch_scales = BATCH_SCALES[:2] if quick else BATCH_SCALES
    points = [(h, w, BATCH, cores) for h, w in scales for cores in CORES]
    points += [(h, w, batch, CORES[-1]) for h, w in batch_scales for batch in batches]
    points += [(h, w, BATCH, CORES[-1]) for h, w in batch_scales if (h, w) not in scales]
    cores_here = len(os.sched_getaffinity(0))
    planned = []
    for repetition in range(3 if quick else REPETITIONS):
        for cores in CORES:
            for config in configs:
                own = [point for point in points if point[3] == cores <= cores_here]
                random.Random(repetition).shuffle(own)
                for height, width, batch, _ in own:
                    if config == "ddp" and batch < 2:
                        continue  # two processes cannot share one image
                    planned.append(_run(config, cores, height, width, batch, repetition))
    for config in configs:
        if config in ("default", "taskgraph"):
            for height, width, batch in EQUAL_POINTS:
                run = _run(config, min(CORES[-1], cores_here), height, width, batch, 0)
                planned.append(run | {"samples": batch * EQUAL_STEPS, "dtype": "float64"})
    return planned


def _run(config: str, cores: int, height: int, width: int, batch: int, repetition: int) -> Run:
    return {
        "config": config,
        "cores": cores,
        "height": height,
        "width": width,
        "batch": batch,
        "samples": samples_of(height, width),
        "repetition": repetition,
        "seed": 1000 + repetition,
        "dtype": "float32",
    }


def _stored(path: Path) -> list[Run]:
    """Return the stored runs. A last line that an interrupt cut off is left out."""
    runs = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                runs.append(json.loads(line))
    return runs


def _key(run: Run) -> tuple[Any, ...]:
    keys = ("config", "cores", "height", "width", "batch", "repetition")
    return *(run[key] for key in keys), run.get("dtype", "float32")


def _complete(path: Path, planned: Sequence[Run], python: str) -> None:
    """Execute the planned runs that are not stored yet, and store each run as it ends."""
    done = {_key(run) for run in _stored(path)}
    due = [run for run in planned if _key(run) not in done]
    absent: set[str] = set()
    begin_s = time.monotonic()
    with path.open("a") as file:
        for (config, cores), group in groupby(due, lambda run: (run["config"], run["cores"])):
            if config in absent:
                continue
            with _program(python, config, cores) as program:
                if program is None:
                    print(f"{config}: not available, left out", file=sys.stderr)
                    absent.add(config)
                    continue
                for run in group:
                    done.add(_key(run))
                    file.write(json.dumps(run | _measured(program, run)) + "\n")
                    file.flush()
            print(
                f"{time.monotonic() - begin_s:.0f} s: {len(done)} runs are stored",
                file=sys.stderr,
                flush=True,
            )


@contextlib.contextmanager
def _program(python: str, config: str, cores: int) -> Iterator[subprocess.Popen[str] | None]:
    """Start the program on the first `cores` CPUs and yield its process.

    Yield None if the program cannot import a module that the configuration needs.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
    if config in ("openmp", "keep"):
        environment |= {"OMP_NUM_THREADS": str(cores), "OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    if config == "keep":
        environment |= KEEP_MEMORY
    if config == "ddp":
        environment["OMP_NUM_THREADS"] = "1"
    cpus = sorted(os.sched_getaffinity(0))[:cores]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cpus)), python, str(PROGRAM), config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as program,
    ):
        assert program.stdin and program.stdout
        try:
            yield program if program.stdout.readline() else None
        finally:
            program.stdin.close()
            program.wait()
            errors.seek(0)
            if message := errors.read().strip():
                print(f"{config}: {message.splitlines()[-1]}", file=sys.stderr)


def _measured(program: subprocess.Popen[str], run: Run) -> Run:
    """Train once. Return the elapsed time, the CPU time and the energy.

    A value is None (null in JSON) if the training failed.
    """
    assert program.stdin and program.stdout
    program.stdin.write(json.dumps(run) + "\n")
    program.stdin.flush()
    result: Run = json.loads(program.stdout.readline())
    joules, source = result["joules"], "RAPL packages"
    if joules is None and result["seconds"] is not None:
        joules, source = _modelled_joules(result["seconds"], result["cpu_s"]), f"lab model of {PROFILE}"
    return result | {
        "load": os.getloadavg()[0],
        "joules": joules,
        "energy_source": None if joules is None else source,
    }


def _modelled_joules(seconds: float, cpu_s: float) -> float:
    """Return the modelled energy in joules of this machine's share of an emulated package.

    See docs/lab-physics.md, section 3. Idle and awake power are divided by the number of cores,
    because the machine has only a part of a package. Cores are assumed to run at maximum
    frequency. Memory traffic is unknown and is not counted.

    Args:
        seconds: time of the training.
        cpu_s: CPU time of the training.
    """
    cpu = load_profile(PROFILE).cpu
    share = CORES[-1] / cpu.cores_per_package
    core_watts = cpu.core_leakage_watts + cpu.core_dynamic_watts * REAL_ACTIVITY
    awake_s = min(seconds, cpu_s)
    return share * (cpu.idle_watts * seconds + cpu.awake_watts * awake_s) + core_watts * cpu_s


if __name__ == "__main__":
    sys.exit(main())
