"""Compilation of the NVML stub.

A library that was built from the same source is used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.build_cache import cache_folder, is_trusted

SOURCES = Path(__file__).with_name("native")
NVML_LIBRARY = "libnvidia-ml.so.1"
NVML_SOURCES = ("nvml_stub.c", "nvml_gpu.c", "nvml_profiles.c", "nvml_signals.c")
NVML_HEADERS = ("nvml_stub.h", "nvidia_device.h")
FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_COMPILE_TIMEOUT_S = 60


def build_nvml(directory: Path, compiler: str = "gcc") -> Path:
    """Compile the NVML stub into a directory, unless a library from the same source is there.

    All users can read the library, whatever the umask.

    Args:
        directory: directory of the library; created if missing. Programs load the stub if their
            LD_LIBRARY_PATH contains this directory.
        compiler: C compiler to call.

    Returns:
        Path of the library.

    Raises:
        UnavailableError: the compiler is missing or failed.
    """
    sources = [SOURCES / name for name in NVML_SOURCES]
    digest = _digest([*sources, *(SOURCES / name for name in NVML_HEADERS)], compiler)
    library = directory / NVML_LIBRARY
    stamp = directory / f"{NVML_LIBRARY}.sha256"
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return library
    if shutil.which(compiler) is None:
        raise UnavailableError(f"{compiler}: not found", todo="install a C compiler (apt-get install gcc)")
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    unfinished = directory / f".{NVML_LIBRARY}.{os.getpid()}"
    cached = cache_folder() / f"{NVML_LIBRARY}-{digest[:16]}"
    if is_trusted(cached):
        shutil.copyfile(cached, unfinished)
    else:
        command = [compiler, *FLAGS, f"-Wl,-soname,{NVML_LIBRARY}", "-o", str(unfinished), *map(str, sources)]
        _compile(command)
        _store(unfinished, cached)
    unfinished.chmod(0o755)
    unfinished.replace(library)
    stamp.write_text(digest)
    return library


def _store(library: Path, cached: Path) -> None:
    """Store a copy of the NVML stand-in library in the cache. Ignore errors of the file system."""
    aside = cached.with_name(f".{cached.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(library, aside)
        aside.chmod(0o700)
        aside.replace(cached)


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]}", str(error)) from None
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise UnavailableError(f"{NVML_LIBRARY}: {command[0]} failed", first)


def _digest(files: list[Path], compiler: str) -> str:
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
