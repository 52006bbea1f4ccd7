"""A response to `GET /v1/usage` for tests of `senergy report`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

START = 1_764_460_800  # 2025-11-30T00:00:00Z
GPU = "NVIDIA A100-SXM4-40GB"
NAMES = ("account", "user", "qos", "partition", "policy", "tag", "gpu_kind", "cpus")
PARENTS = {"root": "", "physics": "root", "theory": "physics", "biology": "root"}
# Account, user, QOS, partition, policy, tag, GPU kind, CPUs; joules, CPU seconds, GPU seconds, jobs.
JOBS: tuple[tuple[tuple[Any, ...], float, int, int, int], ...] = (
    (("physics", "alice", "normal", "cpu", "edp", None, None, 64), 7_200_000, 921_600, 0, 4),
    (
        ("physics", "bob", "high", "gpu", "min-energy", "sweep/a", "NVIDIA A100-SXM4-40GB", 128),
        36e6,
        64_000,
        8000,
        1,
    ),
    (("theory", "carol", "normal", "cpu", "edp", "=1+1", None, 600), 123_456.789012, 7200, 0, 2),
    (("biology", "alice", "normal", "cpu", "none", None, None, 8), 0.5, 61, 0, 1),
    ((None, "1009", None, "cpu", None, None, None, None), 1000, 0, 0, 0),
)
METER = (("idle", 5_400_000), ("unattributed", 12.5))


def row(kind: str, joules: float, interval: int = 0, **more: Any) -> dict[str, Any]:
    """Return a row of an example response to `GET /v1/usage`.

    Half of the energy is that of the processors, the other half that of `other` components.
    """
    energy = round(joules * 1e6)
    return {
        "cluster": "c1",
        "interval": interval,
        "kind": kind,
        "energy_microjoules": energy,
        "cpu_microjoules": energy // 2,
        "dram_microjoules": None,
        "gpu_microjoules": 0,
        "other_microjoules": energy - energy // 2,
        "cpu_seconds": 0,
        "gpu_seconds": 0,
        "jobs": 0,
        "co2e_grams": joules / 3.6e6 * 420,
        "cost": joules / 3.6e6 * 0.25,
    } | more


def response(query: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Return the response of the controller to a query `GET /v1/usage`, for the tests."""
    edges = [int(text) for text in query["edges"].split(",")]
    by = [name for name in query.get("by", "").split(",") if name]
    intervals = [list(pair) for pair in itertools.pairwise(edges)]
    rows = []
    for index in range(len(intervals)):
        share = 1 / len(intervals)
        for values, joules, cpu_seconds, gpu_seconds, jobs in JOBS:
            names = {name: value for name, value in zip(NAMES, values, strict=True) if name in by}
            times = {"cpu_seconds": int(cpu_seconds * share), "gpu_seconds": int(gpu_seconds * share)}
            rows.append(row("job", joules * share, index, jobs=jobs, **names, **times))
        rows += [row(kind, joules * share, index, **dict.fromkeys(by)) for kind, joules in METER]
    return {
        "window": {"start": edges[0], "end": edges[-1]},
        "intervals": intervals,
        "by": by,
        "rows": rows,
        "parents": {"c1": PARENTS} if "account" in by else {},
        "meter_visible": True,
        "missing_node_seconds": [],
        "off": [],
        "has_carbon": True,
        "currency": "EUR",
        "basis": "CO2e: constant, configured; cost: constant, configured; without PUE",
        "notes": [],
        "scope": "all",
    } | more
