"""Program that trains the CNN of DAHL, section 4, on random images, for the benchmark dahl.py.

Each line of standard input describes one training. It is a JSON object with `config`, `height`, `width`,
`batch`, `samples`, `seed` and `dtype`. The program answers each line with a line of JSON. The answer states
the seconds, CPU seconds and joules of one epoch after a first batch, the number of threads, the last loss,
and with `float64` all losses.

Each training runs in a new process, which is forked after PyTorch is loaded. A training therefore inherits
no threads of another training. The program needs PyTorch, and for `taskgraph` the package slurm_energy with
StarPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PACKAGES = Path("/sys/class/powercap")
MAPS, KERNEL, POOL, CLASSES = 16, 3, 2, 10
LEARNING_RATE = 0.001


def main() -> int:
    import torch

    if len(sys.argv) > 1 and sys.argv[1] == "taskgraph":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from slurm_energy.training import taskgraph  # noqa: F401
    print(json.dumps({"torch": torch.__version__, "parallel": torch.__config__.parallel_info()}), flush=True)
    for line in sys.stdin:
        run = json.loads(line)
        ranks = 2 if run["config"] == "ddp" else 1
        with tempfile.TemporaryDirectory() as folder:
            results = _in_processes(run, ranks, Path(folder))
        print(json.dumps(_combined(results)), flush=True)
    return 0


def _in_processes(run: dict[str, Any], ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Run a training in `ranks` new processes and return their results.

    A process that fails has no result in the list.
    """
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                sys.stdin.close()
                result = _train_rank(run, rank, ranks, folder)
                (folder / f"{rank}.json").write_text(json.dumps(result))
                status = 0
            except BaseException as error:
                print(f"{run['config']}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)  # neither StarPU nor gloo may run exit handlers of the parent
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _combined(results: list[dict[str, Any]]) -> dict[str, Any]:
    if not results:
        return dict.fromkeys(("seconds", "cpu_s", "joules", "loss", "threads"))
    return {
        "seconds": max(result["seconds"] for result in results),
        "cpu_s": sum(result["cpu_s"] for result in results),
        "joules": results[0]["joules"],  # of the whole machine
        "loss": sum(result["loss"] for result in results) / len(results),
        "threads": sum(result["threads"] for result in results),
        **({"losses": results[0]["losses"]} if "losses" in results[0] else {}),
    }


def _train_rank(run: dict[str, Any], rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    import numpy

    random = numpy.random.default_rng(run["seed"])
    count = run["samples"]
    images = random.standard_normal((count, 3, run["height"], run["width"]), dtype=numpy.float32)
    labels = random.integers(0, CLASSES, count)
    images = images.astype(run["dtype"])
    if run["config"] == "taskgraph":
        return _train_taskgraph(run, images, labels)
    return _train_torch(run, images, labels, rank, ranks, folder)


def _features(run: dict[str, Any]) -> int:
    return MAPS * ((run["height"] - KERNEL + 1) // POOL) * ((run["width"] - KERNEL + 1) // POOL)


def _torch_model(run: dict[str, Any]) -> Any:
    """Return the network; the seed determines its first parameters."""
    import torch
    from torch import nn

    torch.manual_seed(run["seed"])
    return nn.Sequential(
        nn.Conv2d(3, MAPS, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(POOL),
        nn.Flatten(),
        nn.Linear(_features(run), CLASSES),
    )


def _train_torch(
    run: dict[str, Any], images: Any, labels: Any, rank: int, ranks: int, folder: Path
) -> dict[str, Any]:
    import torch
    from torch import distributed, nn

    model = _torch_model(run).to(getattr(torch, run["dtype"]))
    if ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
        )
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    part = run["batch"] // ranks
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)

    def step(first: int) -> float:
        own = slice(first + rank * part, first + (rank + 1) * part)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[own]), targets[own])
        loss.backward()
        optimizer.step()
        return float(loss)

    step(0)
    if ranks > 1:
        distributed.barrier()
    meter = _Meter()
    losses = [step(first) for first in range(0, run["samples"], run["batch"])]
    if ranks > 1:
        distributed.barrier()
    return meter.result() | _losses(run, losses) | {"threads": torch.get_num_threads()}


def _train_taskgraph(run: dict[str, Any], images: Any, labels: Any) -> dict[str, Any]:
    from slurm_energy.training import taskgraph

    workers = len(os.sched_getaffinity(0))
    model = taskgraph.Sequential(
        taskgraph.Conv2d(3, MAPS, KERNEL),
        taskgraph.ReLU(),
        taskgraph.MaxPool2d(POOL),
        taskgraph.Flatten(),
        taskgraph.Linear(_features(run), CLASSES),
    )
    model.load_state({name: values.numpy() for name, values in _torch_model(run).state_dict().items()})
    trainer = taskgraph.Trainer(
        model,
        learning_rate=LEARNING_RATE,
        batch_size=run["batch"],
        dtype=run["dtype"],
        workers=workers,
        granularity="auto",
    )
    trainer.fit(images[: run["batch"]], labels[: run["batch"]], epochs=1)
    meter = _Meter()
    losses = trainer.fit(images, labels, epochs=1)
    return meter.result() | _losses(run, losses) | {"threads": workers}


def _losses(run: dict[str, Any], losses: Any) -> dict[str, Any]:
    """Return the last loss of a training run.

    If the training run computes in float64, the result also contains all its losses.
    """
    values = [float(loss) for loss in losses]
    return {"loss": values[-1]} | ({"losses": values} if run["dtype"] == "float64" else {})


class _Meter:
    """Meter of elapsed time, CPU time of this process and energy of the RAPL packages.

    All three values count from the creation of the object.
    """

    def __init__(self) -> None:
        self._microjoules = _package_microjoules()
        self._begin_s, self._begin_cpu_s = time.monotonic(), time.process_time()

    def result(self) -> dict[str, Any]:
        """Return elapsed time `seconds`, CPU time `cpu_s` and energy `joules` since the start.

        `joules` is None if there is no energy counter, or if the counter has wrapped.
        """
        seconds, cpu_s = time.monotonic() - self._begin_s, time.process_time() - self._begin_cpu_s
        before, after = self._microjoules, _package_microjoules()
        known = before is not None and after is not None and after >= before
        joules = (after - before) / 1e6 if known else None  # type: ignore[operator]
        return {"seconds": seconds, "cpu_s": cpu_s, "joules": joules}


def _package_microjoules() -> int | None:
    """Return the sum of the RAPL package counters in microjoules.

    The result is None if there is no package counter, or if a counter is unreadable.
    """
    total = None
    for path in PACKAGES.glob("intel-rapl:?"):
        try:
            if (path / "name").read_text().startswith("package"):
                total = (total or 0) + int((path / "energy_uj").read_text())
        except (OSError, ValueError):
            return None
    return total


if __name__ == "__main__":
    sys.exit(main())
