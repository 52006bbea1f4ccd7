"""Parser of --energy-alternatives: the GPU shapes in which a job can run.

A GPU shape is a type and number of GPUs. The value of the option is a list of `gpu:TYPE:COUNT`.
"""

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
"""Maximum length of a list in characters."""


@dataclass(frozen=True, slots=True)
class GpuShape:
    """Number of GPUs of one type on each node of a job, as in `--gres`.

    Attributes:
        gpu_kind: Slurm's type of the GPU, for example `a100`.
        gpus: number of GPUs per node, at least 1.
    """

    gpu_kind: str
    gpus: int

    @property
    def text(self) -> str:
        """GPU request as text in the notation of --energy-alternatives, for example `gpu:a100:4`."""
        return f"gpu:{self.gpu_kind}:{self.gpus}"


def parse_shapes(text: str, name: str = "shapes") -> tuple[GpuShape, ...]:
    """Parse the value of `--energy-alternatives`, the GPU shapes in which a job may run.

    A GPU shape is a type and a number of GPUs. The text comes from users and is not trusted.

    Args:
        text: one to eight `gpu:TYPE:COUNT`, separated by commas; empty means no shapes.
        name: flag or configuration key, for the error message.

    Returns:
        The shapes in the given order, without duplicates.

    Raises:
        UsageError: the text has another form.
    """
    if not text:
        return ()
    parts = text.split(",") if len(text) <= MAX_SHAPES_CHARS else []
    matches = [_SHAPE.fullmatch(part) for part in parts]
    # At most four digits, leading zeros included, as in energy.so and the job_submit module.
    if not 1 <= len(parts) <= MAX_SHAPES or not all(m and len(m[0]) - m.end(1) <= 5 for m in matches):
        raise UsageError(
            f"{name}: '{shown(text)}' is not a list of shapes",
            todo=f"write 1 to {MAX_SHAPES} as gpu:KIND:COUNT, as in gpu:a100:4,gpu:h100:2",
        )
    return tuple(dict.fromkeys(GpuShape(match[1], int(match[2])) for match in matches if match))


def expand_ranges(text: str) -> str:
    """Expand the ranges of GPU numbers in a list of shapes (types and numbers of GPUs).

    A range stands for its first number, for the doublings of the first number that are below the last
    number, and for the last number. For example, `gpu:a100:1-6` becomes
    `gpu:a100:1,gpu:a100:2,gpu:a100:4,gpu:a100:6`. Parts without a range are not changed; `parse_shapes`
    validates them.
    """
    shapes: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        low, high = (int(match[2]), int(match[3])) if match else (1, 0)
        if match is None or low > high:
            shapes.append(part)
            continue
        counts = [low]
        while counts[-1] * 2 <= high:
            counts.append(counts[-1] * 2)
        shapes += [f"{match[1]}:{count}" for count in dict.fromkeys([*counts, high])]
    return ",".join(shapes)
