"""Comparison of the benchmark runs of dahl.py with the DAHL paper and with targets.

The module states which findings of the paper the runs reproduce. It also checks whether the
task-graph trainer reaches its targets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from claims import Claim, at_least, at_most
from dahl_results import NAMES, Cell, Results, Run, Scale, cell_name, scale_name

_MAX_TIME_RATIO, _MIN_CPU_SHARE = 1.2, 0.5
_MIN_DIGITS, _MAX_DIGITS = 10.0, 16.0
_MAX_SPREADS, _MIN_SPREAD = 3.0, 1e-3
"""A last loss in float32 may differ from PyTorch's by this multiple of the differences among PyTorch's own
configurations. With small batches rounding makes trainings diverge; true differences show in float64."""

Finding = tuple[str, str, bool | None]
"""Finding of the paper, figure of the runs, and whether it is reproduced; None: not decided."""


def claims(runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield the checks of the benchmark's targets for the task-graph trainer.

    The checks compare its results and its speed with PyTorch. Checks without a measurement are left out.
    """
    results = Results(runs)
    if exact := list(_exact_differences(results)):
        digits = min(_MAX_DIGITS, -math.log10(max(exact))) if max(exact) > 0 else _MAX_DIGITS
        yield at_least("equal_digits_of_losses_in_float64", digits, _MIN_DIGITS)
    if spreads := list(_loss_spreads(results)):
        yield at_most("last_loss_to_pytorch_spread", max(spreads), _MAX_SPREADS)
    pairs = [
        (cell, [other for other in results.at(scale, (cores,)) if other.config != "taskgraph"])
        for scale in results.scales
        for cores in results.cores
        if (cell := results.cell(scale, cores, "taskgraph")) is not None
    ]
    if pairs:
        slowest = max(cell.mean("seconds") / min(o.mean("seconds") for o in others) for cell, others in pairs)
        yield at_most("taskgraph_time_to_best_pytorch", slowest, _MAX_TIME_RATIO)
        # The competitor in CPU time is PyTorch's fastest configuration, as for time.
        less = [
            cell.mean("cpu_s") < min(others, key=lambda o: o.mean("seconds")).mean("cpu_s")
            for cell, others in pairs
        ]
        yield at_least("taskgraph_scales_with_less_cpu_time", sum(less) / len(less), _MIN_CPU_SHARE)


def _exact_differences(results: Results) -> Iterator[float]:
    """Yield how much each loss of the task-graph trainer differs from PyTorch's loss, in float64.

    The difference is relative to PyTorch's loss, or to 1 if this loss is smaller. A small loss is a
    difference of larger numbers, so its rounding error is the rounding error of a loss of about
    1.
    """
    losses = {
        (run["config"], run["height"], run["width"], run["batch"]): run["losses"]
        for run in results.exact_runs
    }
    for (config, *point), own in losses.items():
        other = losses.get(("default", *point))
        if config == "taskgraph" and other is not None:
            yield from (abs(one - two) / max(1.0, two) for one, two in zip(own, other, strict=True))


def _loss_spreads(results: Results) -> Iterator[float]:
    """Compare the last losses of the task-graph trainer with those of PyTorch.

    Only runs with equal images and equal first parameters are compared. For each run of the task-graph
    trainer, yield how far its loss is outside the range of PyTorch's losses, relative to the width of
    this range. A very small width is replaced by the fraction `_MIN_SPREAD` of the loss.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in results.runs:
        key = tuple(run[name] for name in ("height", "width", "batch", "repetition"))
        groups.setdefault(key, []).append(run)
    for runs in groups.values():
        pytorch = [run["loss"] for run in runs if run["config"] != "taskgraph"]
        if pytorch:
            low, high = min(pytorch), max(pytorch)
            spread = max(high - low, _MIN_SPREAD * high)
            own = (run["loss"] for run in runs if run["config"] == "taskgraph")
            yield from (max(low - loss, loss - high, 0.0) / spread for loss in own)


def findings(results: Results) -> Iterator[Finding]:
    """Yield the findings of the DAHL paper, each with the result of the benchmark's runs."""
    yield _fastest_is_not_cheapest(results)
    yield _best_depends_on_size(results)
    yield _ddp_costs_more(results)
    yield _batches_help(results)
    yield _cores_cost_energy(results)
    yield from _taskgraph_findings(results)
    name = "two threads per core: 1.15x slower, 1.25x less energy on small images"
    yield name, "not measured", None


def _fastest_is_not_cheapest(results: Results) -> Finding:
    count = 0
    for scale in results.scales:
        cells = results.at(scale, results.cores)
        fastest = min(cells, key=lambda cell: cell.mean("seconds"))
        count += any(cell.is_less(fastest, "joules") for cell in cells)
    text = (
        f"at {count} of {len(results.scales)} scales another configuration needs less energy than the fastest"
    )
    return "the fastest configuration is not always the one with the least energy", text, count > 0


def _best_depends_on_size(results: Results) -> Finding:
    name = "the configuration with the least energy depends on the image size"
    best = {
        scale: min(results.at(scale, results.cores), key=lambda cell: cell.mean("joules"))
        for scale in results.scales
    }
    for small, large in itertools.combinations(results.scales, 2):
        first, second = best[small], best[large]
        if _is_better(results, small, first, second) and _is_better(results, large, second, first):
            return (
                name,
                f"{cell_name(first)} at {scale_name(small)}, {cell_name(second)} at {scale_name(large)}",
                True,
            )
    return name, "no two scales differ beyond the confidence intervals", None


def _is_better(results: Results, scale: Scale, cell: Cell, other: Cell) -> bool:
    """Return whether one configuration needs significantly less energy than another one.

    Both are compared for the same image size (`scale`). The difference must exceed the 95 % confidence
    interval.
    """
    one, two = (results.cell(scale, entry.cores, entry.config) for entry in (cell, other))
    return one is not None and two is not None and one.is_less(two, "joules")


def _ddp_costs_more(results: Results) -> Finding:
    name = "data-parallel processes need more time and energy than threads (8.7x and 11.5x)"
    cores = results.cores[-1]
    pairs = [
        (ddp, threads)
        for scale in results.scales
        if (ddp := results.cell(scale, cores, "ddp")) and (threads := results.cell(scale, cores, "openmp"))
    ]
    ratios = [
        (ddp.mean("seconds") / threads.mean("seconds"), ddp.mean("joules") / threads.mean("joules"))
        for ddp, threads in pairs
    ]
    if not ratios:
        return name, "not measured", None
    spans = [f"{min(column):.2f}x to {max(column):.2f}x" for column in zip(*ratios, strict=True)]
    return (
        name,
        f"time {spans[0]}, energy {spans[1]} of OpenMP on {cores} cores",
        _verdict(
            [
                threads.is_less(ddp, metric) - ddp.is_less(threads, metric)
                for ddp, threads in pairs
                for metric in ("seconds", "joules")
            ]
        ),
    )


def _verdict(signs: Sequence[int]) -> bool | None:
    """Return whether a finding holds in all cases.

    The result is False if any case contradicts the finding. It is None if some cases are undecided
    and no case contradicts the finding.

    Args:
        signs: 1 for a case that agrees with the finding, -1 for a case that contradicts the
            finding, 0 if the confidence intervals overlap.
    """
    return False if -1 in signs else True if all(signs) else None


def _batches_help(results: Results) -> Finding:
    name = "larger batches reduce the time of all frameworks"
    cores, parts = results.cores[-1], []
    signs: list[int] = []
    for scale in results.scales:
        batches = results.batches(scale, cores)
        if len(batches) < 2:
            continue
        for config in results.configs:
            cells = [cell for batch in batches if (cell := results.cell(scale, cores, config, batch))]
            if len(cells) > 1:
                signs.append(cells[-1].is_less(cells[0], "seconds") - cells[0].is_less(cells[-1], "seconds"))
                ratio = cells[-1].mean("seconds") / cells[0].mean("seconds")
                parts.append(f"{NAMES[config]} at {scale_name(scale)} {ratio:.2f}x")
    if not parts:
        return name, "not measured", None
    return name, f"time with the largest to the smallest batch: {', '.join(parts)}", _verdict(signs)


def _cores_cost_energy(results: Results) -> Finding:
    name = "more cores: less time and more energy with OpenMP"
    if len(results.cores) < 2:
        return name, "not measured", None
    pairs = [
        (few, many)
        for scale in results.scales
        if (few := results.cell(scale, results.cores[0], "openmp"))
        and (many := results.cell(scale, results.cores[-1], "openmp"))
    ]
    faster = sum(many.is_less(few, "seconds") for few, many in pairs)
    dearer = sum(few.is_less(many, "joules") for few, many in pairs)
    text = f"less time at {faster} and more energy at {dearer} of {len(pairs)} scales"
    if faster <= len(pairs) / 2 or dearer <= len(pairs) / 2:
        return name, f"{text} beyond the intervals", None if faster or dearer else False
    return name, text, True


def _taskgraph_findings(results: Results) -> Iterator[Finding]:
    cores = results.cores[-1]
    ratios = [
        (cell.mean("joules") / other.mean("joules"), cell.mean("seconds") / other.mean("seconds"))
        for scale in results.scales
        if (cell := results.cell(scale, cores, "taskgraph"))
        and (other := results.cell(scale, cores, "openmp"))
    ]
    energy = "the task graph needs up to 4.75x less energy than OpenMP"
    overhead = "the task graph is slower on small images and faster on large ones"
    if not ratios:
        yield energy, "not measured", None
        yield overhead, "not measured", None
        return
    best = 1 / min(ratio for ratio, _ in ratios)
    mean = fmean(1 / ratio for ratio, _ in ratios)
    yield energy, f"at most {best:.2f}x, on average {mean:.2f}x less on {cores} cores", best > 1
    small, large = ratios[0][1], ratios[-1][1]
    yield overhead, f"time {small:.2f}x at the smallest, {large:.2f}x at the largest image", small > 1 > large
