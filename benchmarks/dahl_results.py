"""Stored runs of the benchmark dahl.py, with confidence intervals.

The runs are grouped by scale, batch size, number of cores and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from slurm_energy.tuning.sweep.intervals import difference_half_width, half_width

NAMES: Final = {
    "default": "PyTorch",
    "openmp": "OpenMP",
    "keep": "OpenMP with kept memory",
    "ddp": "DDP",
    "taskgraph": "task graph",
}

Run = Mapping[str, Any]
Scale = tuple[int, int]


@dataclass(frozen=True)
class Cell:
    """Repeated runs of one configuration of the training program with the same parameters.

    The parameters are the size of the images (scale), the batch size and the number of cores.

    Attributes:
        config: configuration.
        cores: number of cores.
        values: values of the runs by metric, per 1000 images.
    """

    config: str
    cores: int
    values: Mapping[str, tuple[float, ...]]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the repeated runs, per 1000 images."""
        return fmean(self.values[metric])

    def is_less(self, other: Cell, metric: str) -> bool:
        """Return whether the mean of a metric in this cell of the table is less than in another cell.

        The difference must exceed the half-width of its 95 % interval.
        """
        width = difference_half_width(self.values[metric], other.values[metric])
        return width is not None and other.mean(metric) - self.mean(metric) > width

    def text(self, metric: str) -> str:
        """Return mean and half-width of the 95 % confidence interval."""
        width = half_width(self.values[metric])
        return f"{self.mean(metric):.3g}" + ("" if width is None else f" ± {width:.2g}")


class Results:
    """Stored runs of the benchmark, grouped by scale, batch size, cores and configuration.

    Failed runs are only counted.

    Attributes:
        runs: runs in float32.
        exact_runs: short runs in float64, which contain all losses.
        failed: number of failed runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        done = [run for run in runs if run["seconds"] is not None]
        self.failed = len(runs) - len(done)
        self.exact_runs = [run for run in done if run.get("dtype") == "float64"]
        self.runs = [run for run in done if run.get("dtype") != "float64"]
        groups: dict[tuple[Scale, int, int, str], list[Run]] = {}
        for run in self.runs:
            key = ((run["height"], run["width"]), run["batch"], run["cores"], run["config"])
            groups.setdefault(key, []).append(run)
        self._cells = {key: _cell(key[3], key[2], group) for key, group in groups.items()}
        self.cores = sorted({key[2] for key in groups})
        self.configs = [name for name in NAMES if any(key[3] == name for key in groups)]
        batches = [key[1] for key in groups for _ in groups[key]]
        self.batch = max(set(batches), key=batches.count, default=0)
        self.scales = sorted({key[0] for key in groups if key[1] == self.batch})

    def cell(self, scale: Scale, cores: int, config: str, batch: int | None = None) -> Cell | None:
        """Return the runs of one configuration with one image size, batch size and number of cores.

        Return None if there are no such runs. `scale` is the height and width of the images. The default of
        `batch` is the batch size of most runs.
        """
        return self._cells.get((scale, self.batch if batch is None else batch, cores, config))

    def at(self, scale: Scale, cores: Sequence[int], batch: int | None = None) -> list[Cell]:
        """Return the results of all configurations at one scale (image size), for given numbers of cores."""
        cells = [self.cell(scale, count, name, batch) for count in cores for name in self.configs]
        return [cell for cell in cells if cell is not None]

    def batches(self, scale: Scale, cores: int) -> list[int]:
        """Return the batch sizes that were measured with one image size and one number of cores.

        The batch sizes are in ascending order. `scale` is the height and width of the images.
        """
        return sorted({key[1] for key in self._cells if (key[0], key[2]) == (scale, cores)})


def _cell(config: str, cores: int, runs: Sequence[Run]) -> Cell:
    values: dict[str, tuple[float, ...]] = {
        metric: tuple(1000 * run[metric] / run["samples"] for run in runs)
        for metric in ("seconds", "cpu_s", "joules")
    }
    values["edp"] = tuple(s * j for s, j in zip(values["seconds"], values["joules"], strict=True))
    return Cell(config, cores, values)


def cell_name(cell: Cell) -> str:
    """Return the label of a benchmark case for tables: its configuration and number of cores."""
    return f"{NAMES[cell.config]}, {cell.cores} {'core' if cell.cores == 1 else 'cores'}"


def scale_name(scale: Scale) -> str:
    """Return a scale of the experiment as the paper writes it, such as `26x34x3`.

    A scale is the height and the width of the images.
    """
    return f"{scale[0]}x{scale[1]}x3"
