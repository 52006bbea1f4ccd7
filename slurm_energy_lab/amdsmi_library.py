"""Stub of the library libamd_smi.so for the lab, and the GPU state that the stub shows.

The stub is generated from the installed `amdsmi` package. The import of this package binds every symbol of
the library. The generator takes the symbols from the package's source and the layout of structures from the
package's ctypes declarations. The generator therefore supports any release.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.nvml_library import FLAGS, SOURCES

LIBRARY = "libamd_smi.so"
STATE_VARIABLE = "SENERGY_LAB_AMDSMI"
_BOUND = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")
_BODY = re.compile(r"^EXPORT int (\w+)\(", re.MULTILINE)
_FIELDS = {
    "amdsmi_power_cap_info_t": ("power_cap", "default_power_cap", "min_power_cap", "max_power_cap"),
    "amdsmi_asic_info_t": ("market_name",),
    "amdsmi_gpu_metrics_t": ("accumulation_counter", "ppt_residency_acc", "socket_thm_residency_acc"),
}
_MAGIC = 0x31534D41
_HEADER = struct.Struct("<II")
_GPU = struct.Struct("<Qf4x4Q3Q64s")
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class AmdGpuState:
    """State of one GPU.

    Powers are in microwatts. The product of accumulator and resolution is the energy in microjoules.
    """

    accumulator: int = 0
    resolution_uj: float = 15.3
    cap_uw: int = 550_000_000
    default_cap_uw: int = 550_000_000
    min_cap_uw: int = 100_000_000
    max_cap_uw: int = 750_000_000
    samples: int = 0
    power_samples: int = 0
    heat_samples: int = 0
    name: str = "AMD Instinct MI300X"


def build(directory: Path, compiler: str = "gcc") -> Path:
    """Generate and compile a stub of AMD's library libamd_smi.so for the lab.

    The library is written to the subdirectory `lib` of a directory. Programs load it if ROCM_PATH is this
    directory.

    Args:
        directory: parent directory of `lib`; created if missing.
        compiler: C compiler to call.

    Returns:
        Path of the library.

    Raises:
        UnavailableError: the `amdsmi` package or the compiler is missing, or the compiler failed.
    """
    wrapper = _wrapper()
    names = sorted(set(_BOUND.findall(wrapper.read_text())))
    library = directory / "lib" / LIBRARY
    library.parent.mkdir(parents=True, exist_ok=True)
    everything = "".join(f"int {name}(void) {{ return 2; }}\n" for name in names)
    bare = directory / "amdsmi_symbols.c"
    bare.write_text(everything)
    _run([compiler, "-shared", "-fPIC", "-o", str(library), str(bare)])
    layout = json.loads(_run([sys.executable, "-c", _LAYOUT_SCRIPT, json.dumps(_FIELDS)], directory))
    (directory / "amdsmi_layout.h").write_text("".join(f"#define {n} {v}\n" for n, v in layout.items()))
    source = SOURCES / "amdsmi_stub.c"
    bodies = set(_BODY.findall(source.read_text()))
    rest = "".join(f"ABSENT({name})\n" for name in names if name not in bodies)
    (directory / "amdsmi_rest.h").write_text(rest)
    _run([compiler, *FLAGS, f"-I{directory}", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(source)])
    return library


_LAYOUT_SCRIPT = """
import ctypes, json, sys
from amdsmi import amdsmi_wrapper
layout = {}
for name, fields in json.loads(sys.argv[1]).items():
    kind = getattr(amdsmi_wrapper, name)
    short = name.removeprefix("amdsmi_").removesuffix("_t").upper()
    layout["SIZE_" + short] = ctypes.sizeof(kind)
    for field in fields:
        layout["AT_" + short + "_" + field.upper()] = getattr(kind, field).offset
print(json.dumps(layout))
"""


class SharedGpus:
    """File that holds the states of emulated AMD GPUs, shared by all processes of a node.

    The library that replaces AMD SMI (stub) shows values from the file. It also stores values in the file
    that processes set.
    """

    def __init__(self, path: Path) -> None:
        """Map an existing file with the states of the GPUs into memory. `write` creates such a file."""
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def write(cls, path: Path, gpus: Sequence[AmdGpuState]) -> SharedGpus:
        """Create a state file.

        Args:
            path: path of the file. Processes find it through SENERGY_LAB_AMDSMI.
            gpus: initial state of each GPU.
        """
        path.write_bytes(_HEADER.pack(_MAGIC, len(gpus)) + b"".join(map(_pack, gpus)))
        path.chmod(0o644)
        return cls(path)

    def get(self, index: int) -> AmdGpuState:
        """Return the current state of the emulated AMD GPU with this index."""
        *numbers, name = _GPU.unpack_from(self._memory, self._offset(index))
        values = dict(zip(_NUMBERS, numbers, strict=True))
        return AmdGpuState(**values, name=name.rstrip(b"\0").decode())

    def put(self, index: int, gpu: AmdGpuState) -> None:
        """Replace the stored state of the GPU with the given index."""
        _GPU.pack_into(self._memory, self._offset(index), *_values(gpu))

    def close(self) -> None:
        """Unmap the file with the states of the emulated GPUs, without deleting the file."""
        self._memory.close()

    def _offset(self, index: int) -> int:
        return _HEADER.size + index * _GPU.size


_NUMBERS = tuple(spec.name for spec in fields(AmdGpuState) if spec.name != "name")


def _values(gpu: AmdGpuState) -> tuple[int | float | bytes, ...]:
    return (*(getattr(gpu, name) for name in _NUMBERS), gpu.name.encode())


def _pack(gpu: AmdGpuState) -> bytes:
    return _GPU.pack(*_values(gpu))


def _wrapper() -> Path:
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError("amdsmi: the Python package is not installed", todo="pip install amdsmi")
    return Path(next(iter(spec.submodule_search_locations))) / "amdsmi_wrapper.py"


def _run(command: list[str], rocm: Path | None = None) -> str:
    environment = {**os.environ, **({"ROCM_PATH": str(rocm), "ROCM_HOME": str(rocm)} if rocm else {})}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(command[0], str(error)) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line), lines[-1] if lines else "")
        raise UnavailableError(f"{command[0]} failed", first)
    return done.stdout
