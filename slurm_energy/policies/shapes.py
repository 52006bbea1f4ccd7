"""Shapes that a job offers to run in, `gpu:KIND:COUNT` lists: reading them. Nothing of Slurm or choices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

MAX_SHAPES: Final = 8
_SHAPE: Final = re.compile(r"gpu:([A-Za-z0-9][A-Za-z0-9_.+-]{0,31}):0*([1-9][0-9]{0,3})")
_RANGE: Final = re.compile(r"(gpu:[^:,]*):([1-9][0-9]{0,3})-([1-9][0-9]{0,3})")
MAX_SHAPES_CHARS: Final = 335
"""Characters of the longest list that is accepted."""


@dataclass(frozen=True, slots=True)
class GpuShape:
    """GPUs of one kind on each node of a job, as `--gres` takes them.

    Attributes:
        gpu_kind: Slurm's type of GPU.
        gpus: how many per node, at least 1.
    """

    gpu_kind: str
    gpus: int

    @property
    def text(self) -> str:
        """As it is written: `gpu:a100:4`."""
        return f"gpu:{self.gpu_kind}:{self.gpus}"


def parse_shapes(text: str, name: str = "shapes") -> tuple[GpuShape, ...]:
    """Read the value of `--energy-alternatives`, which is the user's own word until it went through here.

    Args:
        text: `gpu:KIND:COUNT`, 1 to 8 of them with commas between; empty: none.
        name: the flag or key to name in the error.

    Returns:
        The shapes in the order given, each once.

    Raises:
        UsageError: anything else.
    """
    if not text:
        return ()
    parts = text.split(",") if len(text) <= MAX_SHAPES_CHARS else []
    found = [_SHAPE.fullmatch(part) for part in parts]
    # Four digits at most, leading zeros counted: as energy.so and the job_submit module read them.
    if not 1 <= len(parts) <= MAX_SHAPES or not all(m and len(m[0]) - m.end(1) <= 5 for m in found):
        raise UsageError(
            f"{name}: '{shown(text)}' is not a list of shapes",
            todo=f"write 1 to {MAX_SHAPES} as gpu:KIND:COUNT, as in gpu:a100:4,gpu:h100:2",
        )
    return tuple(dict.fromkeys(GpuShape(match[1], int(match[2])) for match in found if match))


def expand_ranges(text: str) -> str:
    """Write ranges out by doubling: `gpu:a100:1-6` becomes `gpu:a100:1,gpu:a100:2,gpu:a100:4,gpu:a100:6`.

    What is no range stays as it is, for `parse_shapes` to judge.
    """
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        low, high = (int(match[2]), int(match[3])) if match else (1, 0)
        if match is None or low > high:
            found.append(part)
            continue
        counts = [low]
        while counts[-1] * 2 <= high:
            counts.append(counts[-1] * 2)
        found += [f"{match[1]}:{count}" for count in dict.fromkeys([*counts, high])]
    return ",".join(found)
