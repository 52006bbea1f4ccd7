"""Tables of the benchmark dahl.py, computed from its stored runs.

The tables show the results, the crossover points, and which findings of the paper the runs reproduce.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from dahl_findings import findings
from dahl_results import NAMES, Cell, Results, Run, Scale, cell_name, scale_name

BEGIN, END = "<!-- dahl:begin -->", "<!-- dahl:end -->"
METRICS: Final = {"seconds": "time", "cpu_s": "CPU time", "joules": "energy", "edp": "EDP"}
_UNITS: Final = {"seconds": "s", "cpu_s": "s", "joules": "J"}


def write_page(path: Path, runs: Sequence[Run]) -> None:
    """Write the tables of results into a page of the documentation, between two marker lines.

    Raises:
        ValueError: the page has no markers.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: has no lines {BEGIN} and {END}")
    path.write_text("\n".join([before + begin, "", *page_lines(runs), "", end + after]))


def page_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of a Markdown page with the tables of the benchmark's results."""
    results = Results(runs)
    if not results.runs:
        yield "No runs."
        return
    yield from _head(results)
    for metric in ("seconds", "cpu_s", "joules"):
        yield from _scale_table(results, metric)
    yield from _best_table(results)
    yield from _crossovers(results)
    yield from _batch_tables(results)
    yield from _findings(results)


def _head(results: Results) -> Iterator[str]:
    sources = sorted({run["energy_source"] for run in results.runs})
    repetitions = 1 + max(run["repetition"] for run in results.runs)
    yield (
        f"{len(results.runs)} runs, {repetitions} per point, on {results.cores[-1]} cores. Energy: "
        f"{', '.join(sources)}. Each figure is a mean with the half-width of its 95 % confidence interval."
    )
    loads = [run["load"] for run in results.runs if "load" in run]
    if loads:
        yield f"Mean load average: {fmean(loads):.1f}, to which the runs themselves contribute."
    if results.failed:
        yield f"{results.failed} runs failed and are left out."
    for config in NAMES:
        threads = sorted({(run["cores"], run["threads"]) for run in results.runs if run["config"] == config})
        if threads:
            counts = ", ".join(f"{count} on {cores} cores" for cores, count in threads)
            yield f"Threads of {NAMES[config]}: {counts}."
        else:
            yield f"{NAMES[config]}: not measured."
    yield ""


def _scale_table(results: Results, metric: str) -> Iterator[str]:
    """Yield the lines of a Markdown table of one metric.

    Each row shows one scale of the images. Each column shows one number of cores with one configuration. The
    best value of a row is bold.
    """
    columns = [(cores, config) for cores in results.cores for config in results.configs]
    title = METRICS[metric][:1].upper() + METRICS[metric][1:]
    yield f"**{title} for 1000 images in {_UNITS[metric]}**, batches of {results.batch}:"
    yield ""
    yield "| image | " + " | ".join(f"{NAMES[config]}, {cores}" for cores, config in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for scale in results.scales:
        cells = [results.cell(scale, *column) for column in columns]
        yield f"| {scale_name(scale)} | {' | '.join(_marked(cells, metric))} |"
    yield ""


def _marked(cells: Sequence[Cell | None], metric: str) -> list[str]:
    """Return the cells of a table row as text. The cell with the lowest mean is bold."""
    least = min((cell.mean(metric) for cell in cells if cell), default=math.inf)
    texts = []
    for cell in cells:
        text = "" if cell is None else cell.text(metric)
        texts.append(f"**{text}**" if cell is not None and cell.mean(metric) == least else text)
    return texts


def _best_table(results: Results) -> Iterator[str]:
    yield "**Best configuration per scale**; *: not distinguishable from the second best:"
    yield ""
    yield "| image | " + " | ".join(METRICS.values()) + " |"
    yield "|---|" + "---|" * len(METRICS)
    for scale in results.scales:
        cells = results.at(scale, results.cores)
        yield f"| {scale_name(scale)} | {' | '.join(_best(cells, metric) for metric in METRICS)} |"
    yield ""


def _best(cells: Sequence[Cell], metric: str) -> str:
    first, *others = sorted(cells, key=lambda cell: cell.mean(metric))
    tied = bool(others) and not first.is_less(others[0], metric)
    return f"{cell_name(first)}{' *' if tied else ''}"


def _crossovers(results: Results) -> Iterator[str]:
    """Yield the lines of a table of crossover points between two configurations.

    One configuration is better up to a certain scale (size of the images), and the other one is better from
    the next scale on. Only differences beyond the confidence intervals count.
    """
    rows = []
    cores = results.cores[-1]
    for metric in ("seconds", "joules"):
        for first, second in itertools.combinations(results.configs, 2):
            clear = [
                (scale, sign)
                for scale in results.scales
                if (sign := _order(results, scale, cores, first, second, metric))
            ]
            for (left, sign), (right, next_sign) in itertools.pairwise(clear):
                if sign != next_sign:
                    small, large = (first, second) if sign < 0 else (second, first)
                    names = f"{METRICS[metric]} | {NAMES[small]} | {NAMES[large]}"
                    rows.append(f"| {names} | {scale_name(left)} | {scale_name(right)} |")
    yield f"**Crossover points** on {cores} cores, where the better of two changes:"
    yield ""
    if not rows:
        yield "None beyond the confidence intervals."
    else:
        yield "| metric | better for small images | better for large images | up to | from |"
        yield "|---|---|---|---|---|"
        yield from rows
    yield ""


def _order(results: Results, scale: Scale, cores: int, first: str, second: str, metric: str) -> int:
    """Compare a metric of two configurations.

    The result is -1 if `first` has the lower value, 1 if `second` has the lower value, and 0 if neither is
    lower. A difference within the 95 % interval does not count. The result is also 0 if one of the two
    configurations was not measured.
    """
    one, other = results.cell(scale, cores, first), results.cell(scale, cores, second)
    if one is None or other is None:
        return 0
    return -1 if one.is_less(other, metric) else 1 if other.is_less(one, metric) else 0


def _batch_tables(results: Results) -> Iterator[str]:
    cores = results.cores[-1]
    scales = [scale for scale in results.scales if len(results.batches(scale, cores)) > 1]
    columns = [(metric, config) for metric in ("seconds", "joules") for config in results.configs]
    for scale in scales:
        yield f"**Batch**, image {scale_name(scale)}, {cores} cores, for 1000 images:"
        yield ""
        titles = (f"{NAMES[config]}, {METRICS[metric]} {_UNITS[metric]}" for metric, config in columns)
        yield f"| batch | {' | '.join(titles)} |"
        yield "|---|" + "---|" * len(columns)
        for batch in results.batches(scale, cores):
            texts = []
            for metric in ("seconds", "joules"):
                texts += _marked(
                    [results.cell(scale, cores, name, batch) for name in results.configs], metric
                )
            yield f"| {batch} | {' | '.join(texts)} |"
        yield ""


def _findings(results: Results) -> Iterator[str]:
    """Yield the lines of a table about the findings of the paper with which dahl.py compares.

    The table states which of these findings the runs of the benchmark reproduce.
    """
    yield "**Findings of the paper and of these runs:**"
    yield ""
    yield "| finding of the paper | these runs | reproduced |"
    yield "|---|---|---|"
    for name, text, holds in findings(results):
        yield f"| {name} | {text} | {'not decided' if holds is None else 'yes' if holds else 'no'} |"
