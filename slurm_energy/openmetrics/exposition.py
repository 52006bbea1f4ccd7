"""Metric families as text, in the OpenMetrics format or the older format of Prometheus.

The package prometheus-client (extra `metrics`) is needed, and is imported when the first text is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from slurm_energy.errors import UnavailableError

PREFIX: Final = "slurm_energy_"
OPENMETRICS_TYPE: Final = "application/openmetrics-text"


class MetricKind(StrEnum):
    """Kind of a metric: gauge (a value that rises and falls) or counter (a sum that only rises)."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(slots=True)
class MetricFamily:
    """A metric with its samples.

    Attributes:
        name: name of the metric without the prefix `slurm_energy_`; for counters also without the suffix
            `_total`.
        help: meaning of the metric in one sentence.
        kind: gauge or counter.
        labels: names of the metric's labels.
        samples: value of each sample. The key contains the values of the sample's labels, in the order of
            `labels`.
    """

    name: str
    help: str
    kind: MetricKind = MetricKind.GAUGE
    labels: tuple[str, ...] = ()
    samples: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, value: float | None, *labels: str) -> None:
        """Add a sample. If a sample with the same labels exists, add the value to this sample.

        An unknown value (None or not finite) is left out, because unknown is not 0.
        """
        if value is not None and math.isfinite(value):
            self.samples[labels] = self.samples.get(labels, 0.0) + value


def version_family(version: str) -> MetricFamily:
    """Return the metric `build_info`, whose label `version` states the release of a daemon."""
    family = MetricFamily("build_info", "Release of the daemon.", labels=("version",))
    family.add(1.0, version)
    return family


def require_library() -> None:
    """Raise an error if the package prometheus-client is missing.

    Raises:
        UnavailableError: the package cannot be imported.
    """
    try:
        import prometheus_client.openmetrics.exposition  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "metrics", "the package prometheus-client is missing", "pip install 'slurm-energy[metrics]'"
        ) from None


def render(families: Iterable[MetricFamily], accept: str) -> tuple[bytes, str]:
    """Return metric families as text, and the content type of the text.

    Args:
        families: the metrics. Families without samples are left out.
        accept: value of the Accept header of the request, which selects the format.
    """
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics

    collected: Any = _Collected([_library_family(family) for family in families if family.samples])
    if OPENMETRICS_TYPE in accept:
        text: bytes = openmetrics.generate_latest(collected)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return exposition.generate_latest(collected), exposition.CONTENT_TYPE_LATEST


class _Collected:
    """Stand-in for a registry of prometheus-client, with metrics that have been collected before.

    The object is used for a single output of the metrics. prometheus-client calls only the method
    `collect`.
    """

    def __init__(self, families: Sequence[Any]) -> None:
        self._families = families

    def collect(self) -> Sequence[Any]:
        return self._families


def _library_family(family: MetricFamily) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    classes: Mapping[MetricKind, Any] = {
        MetricKind.GAUGE: GaugeMetricFamily,
        MetricKind.COUNTER: CounterMetricFamily,
    }
    made = classes[family.kind](PREFIX + family.name, family.help, labels=family.labels)
    for labels, value in family.samples.items():
        made.add_metric(labels, value)
    return made
