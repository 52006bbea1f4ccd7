"""A real PyTorch training on CPUs that wastes time on purpose; see diagnosis_programs.py.

It trains a convolutional, recurrent or multilayer network on random images for a fixed time. Each option
causes one kind of wasted time. The program needs PyTorch. With `--no-recorder` it does not import
slurm_energy.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, default_collate

SIDE = 28
PIXELS = SIDE * SIDE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the training")
    parser.add_argument("--model", choices=("convolution", "perceptron", "recurrent"), default="convolution")
    parser.add_argument("--width", type=int, default=32, help="channels, or hidden units")
    parser.add_argument("--batch", type=int, default=64, help="samples per step and rank")
    parser.add_argument("--slow-batch", type=int, help="samples per step of the last rank")
    parser.add_argument("--workers", type=int, default=1, help="processes of the loader")
    parser.add_argument("--threads", type=int, default=1, help="threads of the computation")
    parser.add_argument("--transform-ms", type=float, default=0.0, help="CPU time to prepare a sample")
    parser.add_argument("--file", help="file that the samples are read from, without the page cache")
    parser.add_argument("--read-kib", type=int, default=64, help="data read per sample")
    parser.add_argument("--files", help="folder of files of which a sample reads one, without the page cache")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="wait for each sample without CPU use")
    parser.add_argument("--collate-ms", type=float, default=0.0, help="CPU time to build a batch of samples")
    parser.add_argument("--compressed-kib", type=int, default=0, help="data decompressed per sample")
    parser.add_argument("--control-group", help="cgroup.procs of the control group that limits reads")
    parser.add_argument("--checkpoint", help="file of the checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints")
    parser.add_argument(
        "--growing-checkpoint", action="store_true", help="write as much for each step since the last one"
    )
    parser.add_argument("--epoch-steps", type=int, default=0, help="steps per epoch; 0: one long epoch")
    parser.add_argument("--burst-every", type=int, default=0, help="samples between late ones; 0: none")
    parser.add_argument("--burst-ms", type=float, default=0.0, help="wait for a late sample without CPU use")
    parser.add_argument("--first-step-s", type=float, default=0.0, help="CPU time that the first step adds")
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the model")
    parser.add_argument("--persistent", action="store_true", help="keep the processes of the loader")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps between evaluations; 0: none")
    parser.add_argument("--hang-at", type=int, default=0, help="step after which the program waits for ever")
    parser.add_argument("--nan-at", type=int, default=0, help="step at which the loss becomes NaN")
    parser.add_argument("--no-recorder", action="store_true", help="do not report steps")
    parser.add_argument(
        "--adjusted", action="store_true", help="take values that the diagnosis of earlier runs chose"
    )
    parser.add_argument("--lock", help="file whose lock only one process of the loader holds at a time")
    args = parser.parse_args()
    rank, size = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    args.checkpoint_s, args.accumulation, is_staged, is_balanced = 0, 1, False, False
    if args.adjusted:
        import slurm_energy

        args.workers = slurm_energy.adjusted("workers", default=args.workers)
        args.batch = slurm_energy.adjusted("batch-size", default=args.batch)
        args.checkpoint_s = slurm_energy.adjusted("checkpoint-interval", default=0)
        args.accumulation = slurm_energy.adjusted("accumulation", default=1)
        is_staged = slurm_energy.adjusted("stage-data", default=False)
        is_balanced = slurm_energy.adjusted("balance", default=False)
    if args.slow_batch and is_balanced:
        args.batch = (args.batch * (size - 1) + args.slow_batch) // size
    elif args.slow_batch and rank == size - 1:
        args.batch = args.slow_batch
    if args.control_group:
        Path(args.control_group).write_text(str(os.getpid()))  # only now: Python is read at full speed
    with contextlib.ExitStack() as stack:
        if is_staged:
            memory = stack.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm"))
            shutil.copyfile(args.file, memory.name)
            args.file = memory.name
        return run(args, rank, size)


def run(args: argparse.Namespace, rank: int, size: int) -> int:
    """Train as one of several ranks."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(rank)
    if size > 1:
        os.environ.update(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
        distributed.init_process_group("gloo", rank=rank, world_size=size)
    return train(args, size)


class Images(Dataset[Any]):
    """Random images for the training. The production of each sample takes CPU time or reads a file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._descriptor: int | None = None
        self._files = sorted(Path(args.files).iterdir()) if args.files else []
        self._compressed = zlib.compress(bytes(range(64)) * (16 * args.compressed_kib))

    def __len__(self) -> int:
        return self._args.epoch_steps * self._args.batch or 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._args.lock:
            with Path(self._args.lock).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return self._sample(index)
        return self._sample(index)

    def _sample(self, index: int) -> tuple[torch.Tensor, int]:
        end_s = time.thread_time() + self._args.transform_ms / 1000
        image = torch.randn(1, SIDE, SIDE)
        time.sleep(self._args.latency_ms / 1000)
        if self._args.burst_every and index % self._args.burst_every == 0:
            time.sleep(self._args.burst_ms / 1000)
        if self._args.compressed_kib:
            image += zlib.decompress(self._compressed)[index % 64] / 256
        if self._args.file:
            image += self._read(index)
        if self._files:
            image += read_uncached(self._files[index % len(self._files)])
        while time.thread_time() < end_s:
            image = (image * 1.01).clamp(-3, 3)
        return image, index % 10

    def _read(self, index: int) -> float:
        """Read a random part of the file with images, as a loader with a cold cache does.

        The part is removed from the page cache after the reading, so that it must be read from the disk the
        next time.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self._args.file, os.O_RDONLY)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        length = self._args.read_kib * 1024
        parts = os.fstat(self._descriptor).st_size // length
        offset = random.Random(index).randrange(parts) * length
        data = os.pread(self._descriptor, length, offset)
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        return data[0] / 256


def read_uncached(path: Path) -> float:
    """Read a file and remove it from the page cache."""
    with path.open("rb", buffering=0) as file:
        data = file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return data[0] / 256


class Recurrent(nn.Module):
    """A recurrent network that reads the rows of an image.

    Args:
        width: hidden units.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self._rows = nn.GRU(SIDE, width, batch_first=True)
        self._classes = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs, _ = self._rows(images.squeeze(1))
        classes: torch.Tensor = self._classes(outputs[:, -1])
        return classes


def network(kind: str, width: int) -> nn.Module:
    if kind == "recurrent":
        return Recurrent(width)
    if kind == "perceptron":
        hidden = nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))
    layers = nn.Conv2d(1, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * 12 * 12, 10))


def train(args: argparse.Namespace, size: int) -> int:
    """Train until the time is over; all ranks take the same number of steps."""
    model: nn.Module = network(args.model, args.width)
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Images(args),
        batch_size=args.batch,
        num_workers=args.workers,
        shuffle=True,
        persistent_workers=args.persistent and args.workers > 0,
        collate_fn=Collation(args.collate_ms) if args.collate_ms else None,
    )
    end_s, count, saved_s, saved_count = time.monotonic() + args.seconds, 0, time.monotonic(), 0
    for count, (images, labels) in enumerate(steps(args, loader, model, optimizer), 1):
        if count == 1:
            use_cpu(args.first_step_s)
        if args.hang_at and count > args.hang_at:
            signal.pause()
        if args.evaluate:
            with torch.no_grad():
                model(images)
            if is_over(end_s, size):
                break
            continue
        is_exchange = count % args.accumulation == 0
        with contextlib.nullcontext() if is_exchange or size == 1 else model.no_sync():
            loss = nn.functional.cross_entropy(model(images), labels)
            if count == args.nan_at:
                loss = loss * float("nan")
            loss.backward()
        if is_exchange:
            optimizer.step()
            optimizer.zero_grad()
        if not loss.isfinite():
            print(f"the loss is NaN in step {count}", file=sys.stderr)
            return 1
        if args.evaluate_every and count % args.evaluate_every == 0:
            with phase(args, "evaluation"), torch.no_grad():
                for _ in range(args.evaluate_every // 10):
                    model(images)
        if is_checkpoint(args, count, saved_s):
            saved_s = time.monotonic()
            with phase(args, "checkpoint"):
                for _ in range(count - saved_count if args.growing_checkpoint else 1):
                    save(model, optimizer, args.checkpoint)
            saved_count = count
        if is_over(end_s, size):
            break
    if args.growing_checkpoint and count > saved_count:
        with phase(args, "checkpoint"):
            for _ in range(count - saved_count):
                save(model, optimizer, args.checkpoint)
    print(f"{count} steps")
    return 0


class Collation:
    """Collate function of a data loader that needs a given CPU time per batch, for test programs.

    Args:
        milliseconds: CPU time of a batch.
    """

    def __init__(self, milliseconds: float) -> None:
        self._seconds = milliseconds / 1000

    def __call__(self, samples: list[Any]) -> Any:
        use_cpu(self._seconds)
        return default_collate(samples)


def use_cpu(seconds: float) -> None:
    """Keep a CPU busy, as a framework that compiles the model does in the first step.

    Args:
        seconds: CPU time of the calling thread.
    """
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def is_checkpoint(args: argparse.Namespace, count: int, saved_s: float) -> bool:
    """Return whether a checkpoint is due after a step.

    Checkpoints are written every `checkpoint_every` steps, or every `checkpoint_s` seconds if this
    option is set.
    """
    if args.checkpoint_every and args.checkpoint_s:
        return bool(time.monotonic() - saved_s >= args.checkpoint_s)
    return bool(args.checkpoint_every and count % args.checkpoint_every == 0)


def steps(args: argparse.Namespace, loader: Any, model: Any, optimizer: Any) -> Iterator[Any]:
    """Yield the batches of all epochs."""
    if not args.no_recorder:
        import slurm_energy

        loader = slurm_energy.watch(loader, model, optimizer)
    while True:
        yield from loader


def phase(args: argparse.Namespace, name: str) -> contextlib.AbstractContextManager[Any]:
    if args.no_recorder:
        return contextlib.nullcontext()
    import slurm_energy

    return slurm_energy.phase(name)


def save(model: nn.Module, optimizer: Any, path: str) -> None:
    """Write a checkpoint to the disk."""
    with Path(path).open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def is_over(end_s: float, size: int) -> bool:
    """Return whether the training time is over, as a value that is equal on all ranks.

    With several ranks, the clock of the first rank decides.
    """
    is_late = torch.tensor(float(time.monotonic() >= end_s))
    if size > 1:
        distributed.broadcast(is_late, 0)
    return bool(is_late)


if __name__ == "__main__":
    sys.exit(main())
