"""Figures of a diagnosis for text and HTML: use of the hardware, and lost time and energy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.finding_advice import FindingAdvice
from slurm_energy.diagnosis.summary import JobSummary, SignalSummary
from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.labels.advice import COMPONENT_NAMES

_PERCENT_SIGNALS = (
    ("gpu_busy_percent", "GPU busy"),
    ("sm_active_percent", "SMs active"),
    ("dram_active_percent", "GPU memory traffic"),
    ("io_pressure_percent", "waits for I/O"),
    ("cpu_pressure_percent", "waits for CPUs"),
    ("memory_pressure_percent", "waits for memory"),
)
_RATIOS = (
    ("cpu_busy_cores", "cpu_allocated_cores", "CPUs", "{used:.1f} of {whole:.0f} cores", False),
    ("memory_used_bytes", "memory_limit_bytes", "memory", "at most {used:.3g} of {whole:.3g} GB", True),
    (
        "gpu_memory_used_bytes",
        "gpu_memory_total_bytes",
        "GPU memory",
        "at most {used:.3g} of {whole:.3g} GB",
        True,
    ),
)


@dataclass(frozen=True, slots=True)
class UseRow:
    """Use of one hardware resource by a job.

    Attributes:
        name: name of the resource, with the index of the GPU if the job has several GPUs.
        share: fraction of the resource that was used, 0 to 1.
        text: further figures as text.
    """

    name: str
    share: float
    text: str


def use_rows(summary: JobSummary) -> list[UseRow]:
    """Return the rows of a table that shows the job's use of CPUs, memory and GPUs.

    If the job has several GPUs, the table has an additional row for the use of each GPU.
    """
    job = {signal.signal: signal for signal in summary.signals if signal.scope == "job"}
    rows = [*_ratios(job), *_percents(job, "")]
    parts = sorted({s.where for s in summary.signals if s.scope == "part" and s.signal == "gpu_busy_percent"})
    if len(parts) > 1:
        for part in parts:
            own = {signal.signal: signal for signal in summary.signals if signal.where == part}
            rows += [row for row in _percents(own, f"{part} ") if row.name.endswith("busy")]
    return rows


def _ratios(job: dict[str, SignalSummary]) -> Iterator[UseRow]:
    for used_name, whole_name, name, text, at_peak in _RATIOS:
        used, whole = job.get(used_name), job.get(whole_name)
        if used is None or whole is None or whole.values.mean <= 0:
            continue
        value = used.values.p99 if at_peak else used.values.mean
        scale = 1e9 if at_peak else 1.0
        details = text.format(used=value / scale, whole=whole.values.mean / scale)
        yield UseRow(name, value / whole.values.mean, details)


def _percents(signals: dict[str, SignalSummary], prefix: str) -> Iterator[UseRow]:
    for signal, name in _PERCENT_SIGNALS:
        if signal in signals:
            values = signals[signal].values
            yield UseRow(f"{prefix}{name}", values.mean / 100, f"P90 {values.p90:.0f} %")


def energy_text(summary: JobSummary) -> str:
    """Return the energy of a job as text, such as `345 kJ`, or `at least 345 kJ` if some of it is unknown."""
    return lower_bound_text(summary.energy_joules, "J", summary)


def lower_bound_text(value: float | None, unit: str, summary: JobSummary) -> str:
    """Return as text a value that is proportional to the energy of a job, such as its mean power.

    The text begins with `at least` if a part of the energy is unknown.
    """
    text = with_unit(value, unit)
    return text if value is None or summary.is_energy_complete else f"at least {text}"


def missing_energy_text(summary: JobSummary, recorded_nodes: int) -> str:
    """Return a text that says what the energy of a job covers and lacks; empty if the energy is complete.

    An example is `energy of 1 of 4 nodes; GPU energy unknown`.

    Args:
        summary: figures of the job.
        recorded_nodes: number of nodes with an energy record.
    """
    parts = []
    if summary.missing_nodes:
        parts.append(f"energy of {recorded_nodes} of {recorded_nodes + summary.missing_nodes} nodes")
    if summary.incomplete_components:
        names = (COMPONENT_NAMES.get(name, name) for name in summary.incomplete_components)
        parts.append(f"{' and '.join(names)} energy unknown")
    return "; ".join(parts)


def duration_text(seconds: float) -> str:
    """Return a duration with three significant digits: `12.5 ms`, `3.20 s`."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else format_duration(seconds)


def confidence_text(finding: JobFinding, elapsed_s: float) -> str:
    """Return the cost of a finding (cause of lost time or energy) and its confidence as text.

    Args:
        finding: finding of the diagnosis.
        elapsed_s: duration of the job.
    """
    parts = []
    if finding.seconds_lost:
        share = f" ({100 * finding.seconds_lost / elapsed_s:.0f} %)" if elapsed_s > 0 else ""
        parts.append(f"{duration_text(finding.seconds_lost)}{share}")
    if finding.joules_lost:
        parts.append(with_unit(finding.joules_lost, "J"))
    lost = f"costs up to {', '.join(parts)}" if parts else "cost unknown"
    return f"{lost}; confidence {100 * finding.confidence:.0f} %"


def gain_text(advice: FindingAdvice) -> str:
    """Return a text about an advice of the diagnosis.

    The text states the expected gain, the source of this figure, and the way to check it.
    """
    parts = [duration_text(advice.seconds_gain)] if advice.seconds_gain else []
    if advice.joules_gain is not None:
        parts.append(with_unit(advice.joules_gain, "J"))
    return f"expected gain: {', '.join(parts)} ({advice.source}); check: {advice.verify}"
