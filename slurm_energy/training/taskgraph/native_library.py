"""Compilation and loading of the C sources in slurm_energy/training/native.

At the first use on each kind of processor, the library is compiled for this kind of processor and stored in
the user's cache directory (`$XDG_CACHE_HOME/slurm-energy` or `~/.cache/slurm-energy`).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import secrets
import shutil
import stat
import subprocess
from pathlib import Path

from slurm_energy.errors import UnavailableError

SOURCES = Path(__file__).parents[1] / "native"
PACKAGES = {"starpu-1.3": "libstarpu-dev", "openblas": "libopenblas-dev"}
"""pkg-config names of the libraries and the Debian packages that contain them."""
MPI_PACKAGES = {"starpumpi-1.3": "libstarpu-dev", "ompi-c": "libopenmpi-dev"}
"""What a trainer over several processes needs too."""
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=default")
_COMPILE_TIMEOUT_S = 900


class StageSpec(ctypes.Structure):
    """Counterpart of the C type `struct tg_stage_spec` of taskgraph.h, one stage of a network."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("kind", "outputs", "kernel_h", "kernel_w", "stride_h", "stride_w")
        ),
        *((name, ctypes.c_int32) for name in ("pad_h", "pad_w", "relu", "pool_h", "pool_w")),
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "weights_gradient", "bias_gradient")),
    ]


def _command_output(command: list[str], timeout_s: float = 20) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]} for the task-graph trainer", str(error)) from None
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line]
            or done.stderr.splitlines()
            or ["?"]
        )
        raise UnavailableError(f"{command[0]} for the task-graph trainer", lines[0].strip())
    return done.stdout


def missing_requirement(distributed: bool = False) -> str | None:
    """Check the requirements for compiling the trainer.

    Return a text that names the first missing requirement and how to install it; None if no requirement is
    missing.
    """
    for tool, package in (("gcc", "gcc"), ("pkg-config", "pkg-config")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install {package}"
    for name, package in _packages(distributed).items():
        if subprocess.run(["pkg-config", "--exists", name], check=False, timeout=20).returncode:
            return f"{name} is not installed: apt-get install {package}"
    return None


def _packages(distributed: bool) -> dict[str, str]:
    return MPI_PACKAGES | PACKAGES if distributed else PACKAGES


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "slurm-energy"


def _require_own_folder(folder: Path) -> None:
    """Create the cache directory for the compiled library. Refuse one that other users can write to.

    Otherwise another user could replace the library.

    Raises:
        UnavailableError: other users can write there.
        OSError: the directory cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        todo = f"chmod go-w {folder} if it is yours, or set XDG_CACHE_HOME"
        raise UnavailableError(f"{folder}", "other users can write there", todo)


def _unusable(folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(f"{folder}", error.strerror or str(error), "set XDG_CACHE_HOME")


def _is_own_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _processor_features() -> str:
    """Return the instruction sets of the processor. Hosts that share a home directory may differ in them."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        flags = [line for line in lines if line.startswith(("flags", "Features"))]
    return platform.machine() + (flags[0] if flags else "")


def build_library(distributed: bool = False) -> Path:
    """Compile the C sources unless the cache has the library of the same sources and processor.

    Args:
        distributed: whether the library uses StarPU-MPI.

    Raises:
        UnavailableError: the compiler or a library is missing, the compilation failed, or other users can
            write the cache directory.
    """
    digest = hashlib.sha256((_processor_features() + repr((_FLAGS, distributed))).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + path.read_bytes())
    library = _cache_folder() / f"libtaskgraph-{digest.hexdigest()[:16]}.so"
    try:
        _require_own_folder(library.parent)
    except OSError as error:
        raise _unusable(library.parent, error) from None
    if _is_own_file(library):
        return library
    if missing := missing_requirement(distributed):
        raise UnavailableError("the task-graph trainer", *missing.split(": ", 1))
    options = _command_output(["pkg-config", "--cflags", "--libs", *_packages(distributed)]).split()
    options += ["-DTG_MPI"] if distributed else []
    # Hosts with one home directory may build at the same time, in processes with the same number.
    unfinished = library.with_suffix(f".{secrets.token_hex(8)}")
    try:
        sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        command = ["gcc", *_FLAGS, "-o", str(unfinished), *sources, *options, "-fopenmp", "-lm", "-lpthread"]
        _command_output(command, _COMPILE_TIMEOUT_S)
        unfinished.chmod(0o700)
        unfinished.replace(library)
    except OSError as error:
        raise _unusable(library.parent, error) from None
    finally:
        unfinished.unlink(missing_ok=True)
    return library


@functools.cache
def load_library(distributed: bool = False) -> ctypes.CDLL:
    """Compile and load the library.

    Args:
        distributed: whether the library uses StarPU-MPI.


    Raises:
        UnavailableError: see `build_library`; or a shared library is missing.
    """
    path = build_library(distributed)
    try:
        library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL if distributed else ctypes.DEFAULT_MODE)
    except OSError as error:
        raise UnavailableError("the task-graph trainer", str(error)) from None
    pointer, size = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[object, list[object]]] = {
        "tg_start": (size, [size]),
        "tg_stop": (None, []),
        "tg_ranks": (size, []),
        "tg_rank": (size, []),
        "tg_task_overhead_s": (ctypes.c_double, [size]),
        "tg_network_new": (pointer, [ctypes.POINTER(StageSpec), *[size] * 6]),
        "tg_network_free": (None, [pointer]),
        "tg_network_split": (size, [pointer, size, size]),
        "tg_counters": (None, [pointer, ctypes.POINTER(ctypes.c_int64)]),
        "tg_run": (
            size,
            [pointer, size, pointer, pointer, pointer, ctypes.c_int64, ctypes.c_double, pointer, pointer],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
