"""Benchmark: effect of the network on the number of nodes that a training program chooses.

The latency and the bandwidth of the network vary. The benchmark also finds the latency from which fewer than
three nodes are faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from balanced_lab import ALL_NODES, Row, TrainingRuns
from claims import Claim, at_most, claim

from slurm_energy_lab.interconnect.links import LinkSpec

SPEEDS = (1.0, 0.6, 0.3)
LATENCY_NETWORKS = tuple(LinkSpec(latency_s, 1e9) for latency_s in (0.0, 0.005, 0.02, 0.05))
NETWORKS = (*LATENCY_NETWORKS, LinkSpec(0.0, 1e10), LinkSpec(0.0, 1e8))
SHORT_STEPS = ("--samples", "1280", "--global-batch", "128", "--outputs", "32")
"""4 MB of gradients, and steps in which a latency of 50 ms counts."""
MAX_LATENCY_S = 0.5
SIDES = (0.6, 1.6)
"""Latencies of the confirming runs, in parts of the threshold."""


def network_claims(runs: TrainingRuns) -> Iterator[Claim]:
    """Yield the claims of the benchmark about the number of nodes on which the program trains.

    One claim per network compares the number of nodes that the program chooses with the best number. The
    other claims are about a threshold of the network latency. Above the threshold, a training on one or two
    nodes is faster than a training on three nodes.
    """
    times: dict[LinkSpec, dict[int, float]] = {}
    for links in NETWORKS:
        times[links] = fixed_seconds(runs, links)
        free = chosen(runs, links)
        count = sum(1 for samples in free["samples"] if samples)
        best = min(times[links].values())
        rate = f"{(links.bits_per_s or 0) / 1e6:g}mbit"
        yield at_most(f"chosen_to_best_{links.latency_s * 1e3:g}ms_{rate}", times[links][count] / best, 1.1)
    threshold_s = threshold([(links.latency_s, times[links]) for links in LATENCY_NETWORKS])
    if threshold_s is None:
        yield claim("latency_threshold_ms", float("nan"), "found", False)
        return
    yield claim("latency_threshold_ms", threshold_s * 1e3, "found", True)
    for part, is_above in zip(SIDES, (False, True), strict=True):
        measured = fixed_seconds(runs, LinkSpec(round(threshold_s * part, 4), 1e9))
        ratio = min(measured[1], measured[2]) / measured[3]
        side = "above" if is_above else "below"
        target = "<1" if is_above else ">1"
        yield claim(f"fewer_to_three_nodes_{side}_threshold", ratio, target, (ratio < 1) is is_above)


def fixed_seconds(runs: TrainingRuns, links: LinkSpec) -> dict[int, float]:
    """Return the seconds per epoch of a training on one, two and three nodes, by number of nodes.

    The network has no influence on the run on one node. This run is therefore done only once for all
    networks.
    """
    alone_network = NETWORKS[0]
    rows = {1: fixed(runs, alone_network, "n1", "1 node")}
    for count, nodes in ((2, "n1,n2"), (3, ALL_NODES)):
        rows[count] = fixed(runs, links, nodes, f"{count} nodes")
    return {count: row["seconds"] for count, row in rows.items()}


def fixed(runs: TrainingRuns, links: LinkSpec, nodes: str, name: str) -> Row:
    """Return the result of a training run that always uses all given nodes."""
    arguments = ["--epochs", "4", "--goal", "time", "--all-ranks", *SHORT_STEPS]
    return runs.row(name, links, SPEEDS, lambda lab: lab.run(arguments, nodes).row())


def chosen(runs: TrainingRuns, links: LinkSpec) -> Row:
    """Return the result of a training run in which ranks may pause, as the balancer decides."""
    arguments = ["--epochs", "6", "--goal", "time", *SHORT_STEPS]
    return runs.row("free choice", links, SPEEDS, lambda lab: lab.run(arguments).row())


def threshold(points: list[tuple[float, dict[int, float]]]) -> float | None:
    """Return the network latency from which a cluster of three nodes is no longer the fastest.

    At this latency, training on one or two nodes becomes as fast. The advantage of three nodes is
    interpolated between two latencies, or extrapolated from the first and the last one. The result is None
    if three nodes are never faster, or if the latency would exceed `MAX_LATENCY_S`.

    Args:
        points: pairs in ascending order of latency: latency in seconds, and seconds per epoch by number of
            nodes.
    """
    gains = [(latency_s, min(times[1], times[2]) - times[3]) for latency_s, times in points]
    if gains[0][1] <= 0:
        return None
    for (low_s, low), (high_s, high) in itertools.pairwise(gains):
        if high <= 0:
            return low_s + (high_s - low_s) * low / (low - high)
    (low_s, low), (high_s, high) = gains[0], gains[-1]
    if high >= low:
        return None
    crossing_s = high_s + (high_s - low_s) * high / (low - high)
    return crossing_s if crossing_s <= MAX_LATENCY_S else None
