"""Reference kernels that `senergy tune characterise` runs on a node.

The command line is `python -m` this module CLASS --units N.

The classes are `compute` (matrix products), `memory` (the triad a = b + s c on large arrays) and `host`
(small operations with Python code between them). On CPUs the kernels use numpy, on GPUs PyTorch. A unit is
one pass of the kernel over all CPUs or GPUs of the job. The same number of units is therefore the same work
at every setting.

`--describe` prints one line of JSON. The line contains the ranges of the CPU frequency and the GPU power
limit, and the units per second of each class. If a Python module is missing, the line names the module
instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

CLASSES: Final = ("compute", "memory", "host")
EXIT_MISSING: Final = 4
MARK: Final = "senergy-reference-kernels "
"""Text before the JSON of --describe. The text separates the JSON from output of prologs and modules."""
_MATRIX: Final = 2048
_ARRAY: Final = 2_000_000
_GPU_MATRIX: Final = 8192
_GPU_ARRAY: Final = 1 << 28
_MAX_THREADS: Final = 128

Kernel = Callable[[], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a kernel or describe the node, and return the exit code."""
    parser = argparse.ArgumentParser(description="reference kernels of senergy tune characterise")
    parser.add_argument("kernel", nargs="?", choices=CLASSES)
    parser.add_argument("--units", type=int, default=1, help="amount of work")
    parser.add_argument("--gpu", action="store_true", help="on the job's GPUs, with PyTorch")
    parser.add_argument("--describe", action="store_true", help="print ranges and speeds as JSON")
    parser.add_argument("--seconds", type=float, default=3.0, help="with --describe: time per class")
    args = parser.parse_args(argv)
    try:
        if args.describe:
            print(MARK + json.dumps(describe(args.gpu, args.seconds)), flush=True)
        elif args.kernel:
            kernel = make_kernel(args.kernel, gpu=args.gpu)
            for _ in range(args.units):
                kernel()
        else:
            parser.error("name a kernel or give --describe")
    except ImportError as error:
        if args.describe:  # srun would report its own exit message instead of one on standard error
            print(MARK + json.dumps({"missing": f"{error.name} for {sys.executable}"}), flush=True)
            return 0
        print(f"reference kernels: {error.name} is not installed for {sys.executable}", file=sys.stderr)
        return EXIT_MISSING
    return 0


def describe(gpu: bool, seconds: float) -> dict[str, Any]:
    """Describe this node: the ranges of its CPU frequency and GPU limit, and its measured speeds.

    A speed is the speed of the reference kernel of one class.

    Args:
        gpu: measure the kernels on GPUs.
        seconds: duration of the measurement of one class; 0 means no measurement.

    Returns:
        `cpu_mhz` and `gpu_watts` are ranges of a lower and an upper end. The lower end is the minimum that
        the hardware supports. The upper end is the value that is in force. An unknown range is None.
        `units_per_s` contains the units of work per second by class.
    """
    from slurm_energy.devices.discovery import discover

    hardware = discover().hardware
    ranges = [policy.hardware_range_khz for policy in hardware.policies]
    limits = [
        (device.min_limit_watts, device.limit_watts)
        for device in hardware.gpus
        if device.min_limit_watts and device.limit_watts
    ]
    return {
        "cpu_mhz": [max(r[0] for r in ranges) / 1e3, min(r[1] for r in ranges) / 1e3] if ranges else None,
        "gpu_watts": [max(x[0] for x in limits), min(x[1] for x in limits)] if limits else None,
        "units_per_s": {name: measure_speed(make_kernel(name, gpu=gpu), seconds) for name in CLASSES}
        if seconds > 0
        else {},
    }


def measure_speed(kernel: Kernel, seconds: float) -> float:
    """Measure how many units of work per second a compute kernel completes.

    The first unit is a warm-up and is not measured.
    """
    kernel()
    start = time.perf_counter()
    units = 0
    while (elapsed_s := time.perf_counter() - start) < seconds or not units:
        kernel()
        units += 1
    return units / elapsed_s


def make_kernel(name: str, *, gpu: bool) -> Kernel:
    """Return a function that runs a reference kernel of the given class once.

    Raises:
        ImportError: numpy or PyTorch is not installed.
    """
    return _gpu_kernel(name) if gpu else _cpu_kernel(name)


def _cpu_kernel(name: str) -> Kernel:
    import numpy as np

    if name == "compute":
        a, b = np.full((_MATRIX, _MATRIX), 1.5), np.full((_MATRIX, _MATRIX), 0.5)
        product = np.empty_like(a)

        def multiply() -> None:
            np.matmul(a, b, out=product)

        return multiply
    if name == "memory":
        return _cpu_triad(np)
    small = np.ones(64)

    def host() -> None:
        total = 0.0
        for index in range(20_000):
            total += float(small[index % 64]) * 1.000001

    return host


def _cpu_triad(np: Any) -> Kernel:
    """Return the reference kernel `triad` (a = b + s c on large arrays) for the CPUs.

    The kernel has one thread per CPU. Threads can work in parallel because numpy releases the interpreter
    lock on large arrays.
    """
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    arrays = [tuple(np.full(_ARRAY, value) for value in (0.0, 1.0, 2.0)) for _ in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def triad(own: tuple[Any, Any, Any]) -> None:
        result, b, c = own
        np.multiply(c, 3.0, out=result)
        np.add(result, b, out=result)

    def all_threads() -> None:
        for _ in pool.map(triad, arrays):
            pass

    return all_threads


def _gpu_kernel(name: str) -> Kernel:
    import torch

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not devices:
        raise ImportError("no GPU is visible to PyTorch", name="torch with a visible GPU")

    def synchronise() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    if name == "compute":
        size = (_GPU_MATRIX, _GPU_MATRIX)
        factors = [torch.ones(size, dtype=torch.float16, device=device) for device in devices]

        def compute() -> None:
            for factor in factors:
                torch.mm(factor, factor)
            synchronise()

        return compute
    count = _GPU_ARRAY if name == "memory" else 1024
    arrays = [tuple(torch.ones(count, device=device) for _ in range(3)) for device in devices]

    def triad() -> None:
        for result, b, c in arrays:
            torch.add(b, c, alpha=3.0, out=result)
        synchronise()

    if name == "memory":
        return triad

    def host() -> None:
        for _ in range(100):
            triad()

    return host


if __name__ == "__main__":
    sys.exit(main())
