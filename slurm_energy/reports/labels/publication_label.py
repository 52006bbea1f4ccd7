"""Energy label of a job for papers and model cards: energy, time, hardware, work and emissions.

Source of the contents: thesis, section 6.4.3.
"""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.grid.amount_text import cost_text, grams_text
from slurm_energy.grid.footprint import Footprint
from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import percent, plain, with_unit
from slurm_energy.reports.labels.advice import COMPONENT_NAMES
from slurm_energy.reports.plots.svg import element
from slurm_energy.reports.usage import COMPONENTS, JobUsage
from slurm_energy.safe_text import escape_controls
from slurm_energy.slurm.hostlist import fold_hostlist

UNKNOWN: Final = "unknown"
_WIDTH: Final = 520
_ROW: Final = 24
_MARGIN: Final = 16
_CHARACTER: Final = 7.2
"""Width in pixels of a character of the label's font at its size."""


@dataclass(frozen=True, slots=True)
class LabelledWork:
    """Work that a job has done, as stated by its user.

    Attributes:
        count: number of completed units of work, greater than 0.
        unit: name of one unit of work, such as `image` or `training step`.
    """

    count: float
    unit: str


@dataclass(frozen=True, slots=True)
class PublicationLabel:
    """Energy label of one job.

    Attributes:
        job: the job on all its nodes.
        footprint: emissions and cost of the job's energy; None if neither carbon intensity nor price is
            configured, or the controller returned no factors.
        work: work that the job has done; None if not stated.
    """

    job: JobUsage
    footprint: Footprint | None = None
    work: LabelledWork | None = None

    @property
    def joules_per_unit(self) -> float | None:
        """Energy per unit of work in joules; None if unknown."""
        joules = self.job.energy_joules
        return None if self.work is None or joules is None else joules / self.work.count

    @property
    def seconds_per_unit(self) -> float | None:
        """Time per unit of work in seconds; None if no work is stated."""
        return None if self.work is None else self.job.elapsed_s / self.work.count

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return the rows of the label. Each row has a name, and a list with one or more lines of text."""
        job = self.job
        rows = [
            ("Job", [_title(job)]),
            ("Energy", [self._energy_text(), *_component_lines(job)]),
            ("Time", [format_duration(job.elapsed_s)]),
            ("Power", [f"mean {with_unit(job.mean_watts, 'W')}, peak {with_unit(job.peak_watts, 'W')}"]),
            ("Hardware", list(_hardware(job))),
            ("Policy", [_policy(job)]),
        ]
        if self.work is not None:
            rows.append(("Work", [self._work_text()]))
        rows.append(("Emissions", self._emission_lines()))
        if self.footprint is not None and self.footprint.cost is not None:
            rows.append(("Cost", self._cost_lines(self.footprint)))
        rows.append(("Quality", [_quality(job)]))
        return rows

    def lines(self) -> list[str]:
        """Return the label for the terminal."""
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        head = f"Energy label of job {self.job.display_id}"
        lines = [head, "=" * len(head)]
        for name, texts in rows:
            for number, text in enumerate(texts):
                lines.append(f"{name if number == 0 else '':<{width}}  {text}".rstrip())
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the label as a JSON object. Unknown values are null."""
        job, work = self.job, self.work
        return {
            "meta": {"senergy": __version__},
            "job_id": job.first.job_id,
            "display_id": job.display_id,
            "cluster": job.first.cluster,
            "name": job.job.name,
            "model": job.first.model,
            "policy": job.first.policy,
            "start": job.start,
            "end": job.end,
            "elapsed_s": job.elapsed_s,
            "energy_joules": job.energy_joules,
            "energy_kwh": job.energy_kwh,
            "component_joules": {name: job.component_joules(name) for name in job.component_types},
            "mean_watts": job.mean_watts,
            "peak_watts": job.peak_watts,
            "quality": job.quality,
            "sources": list(job.sources),
            "nodes": list(job.nodes),
            "cpus": job.cpus,
            "devices": [{"product": product, "count": count} for product, count in _devices(job)],
            "work": None if work is None else {"count": work.count, "unit": work.unit},
            "joules_per_unit": self.joules_per_unit,
            "seconds_per_unit": self.seconds_per_unit,
            "footprint": None if self.footprint is None else self.footprint.to_json(),
        }

    def svg(self) -> str:
        """Return the label as an SVG picture, with colours for light and dark pages."""
        title = escape_controls(f"Energy label of job {self.job.display_id}")
        texts, y = [], _MARGIN + 28
        for name, lines in self.rows():
            texts.append(element("line", x1=_MARGIN, x2=_WIDTH - _MARGIN, y1=y - 8, y2=y - 8, class_="rule"))
            texts.append(element("text", text=name, x=_MARGIN, y=y + 10, class_="name"))
            for line in _wrapped(lines):
                texts.append(element("text", text=line, x=_MARGIN + 96, y=y + 10, class_="value"))
                y += _ROW - 4
            y += 8
        height = y + _MARGIN - 8
        return element(
            "svg",
            element("title", text=title),
            element("style", text=_STYLE),
            element("rect", x=1, y=1, width=_WIDTH - 2, height=height - 2, rx=8, class_="frame"),
            element("text", text=title, x=_MARGIN, y=_MARGIN + 12, class_="title"),
            *texts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_WIDTH} {height}",
            width=_WIDTH,
            height=height,
            role="img",
        )

    def _energy_text(self) -> str:
        joules, kwh = self.job.energy_joules, self.job.energy_kwh
        if joules is None or kwh is None:
            return UNKNOWN
        digits = 3 if kwh >= 0.1 else 6
        return f"{plain(kwh, digits)} kWh ({with_unit(joules, 'J')})"

    def _work_text(self) -> str:
        assert self.work is not None
        energy = _small_with_unit(self.joules_per_unit, "J")
        time = _small_with_unit(self.seconds_per_unit, "s")
        count = f"{self.work.count:,.15g}"
        return f"{count} x {self.work.unit} (stated by the user): {energy} and {time} each"

    def _emission_lines(self) -> list[str]:
        footprint = self.footprint
        if footprint is None:
            return [UNKNOWN]
        if footprint.carbon is None:
            return [f"{UNKNOWN}: no carbon intensity is configured"]
        basis = f"{footprint.carbon_basis}; {footprint.pue_text}"
        lines = [f"{grams_text(footprint.grams) or UNKNOWN} CO2e", basis]
        if footprint.embodied_grams is not None:
            total = grams_text(footprint.total_grams) or UNKNOWN
            lines.append(f"embodied {grams_text(footprint.embodied_grams)}, together {total} CO2e (SCI)")
        return lines

    def _cost_lines(self, footprint: Footprint) -> list[str]:
        cost = cost_text(footprint.cost_amount, footprint.currency) or UNKNOWN
        return [cost, f"{footprint.cost_basis}; {footprint.pue_text}"]


_STYLE: Final = (
    ".frame{fill:#fff;stroke:#555}.title{font:600 16px sans-serif;fill:#111}"
    ".name{font:600 13px sans-serif;fill:#333}.value{font:13px sans-serif;fill:#111}.rule{stroke:#ccc}"
    "@media (prefers-color-scheme:dark){.frame{fill:#161b22;stroke:#8b949e}"
    ".title,.value{fill:#e6edf3}.name{fill:#c9d1d9}.rule{stroke:#30363d}}"
)


def _title(job: JobUsage) -> str:
    parts = [job.job.name or "", f"model {job.first.model}" if job.first.model else ""]
    named = ", ".join(part for part in parts if part)
    return f"{job.display_id} on {job.first.cluster}" + (f": {named}" if named else "")


def _component_lines(job: JobUsage) -> list[str]:
    total = job.energy_joules
    parts = []
    for name in COMPONENTS:
        joules = job.component_joules(name)
        if name != "node" and name in job.component_types:
            share = percent(joules, total, 0)
            parts.append(f"{COMPONENT_NAMES[name]} {share or UNKNOWN}")
    return [", ".join(parts)] if parts else []


def _devices(job: JobUsage) -> list[tuple[str, int]]:
    """Return the products of the devices that the job used, each with a count.

    For GPUs, the count is the number of GPUs. For processors, it is the number of nodes.
    """
    counts = collections.Counter(device.product for record in job.records for device in record.devices)
    return [(product or UNKNOWN, count) for product, count in counts.items()]


def _hardware(job: JobUsage) -> Iterable[str]:
    nodes = len(job.nodes)
    yield f"{nodes} node{'s' if nodes > 1 else ''} ({fold_hostlist(job.nodes)}), {job.cpus or UNKNOWN} CPUs"
    gpus = collections.Counter(
        device.product for record in job.records for device in record.devices if device.name.startswith("gpu")
    )
    processors = dict.fromkeys(
        device.product for record in job.records for device in record.devices if device.name == "cpu"
    )
    yield from (product for product in processors if product)
    yield from (f"{count} x {product}" for product, count in gpus.items())


def _policy(job: JobUsage) -> str:
    flags = [
        f"{key.replace('_', ' ')} {value}" for key, value in job.first.requested.items() if key != "policy"
    ]
    return job.first.policy + (f" ({', '.join(flags)})" if flags else "")


def _quality(job: JobUsage) -> str:
    sources = ", ".join(job.sources)
    missing = (
        f"; records of {job.missing_nodes} of {job.job.nodes} nodes missing" if job.missing_nodes else ""
    )
    return f"{job.quality or UNKNOWN}{missing}" + (f"; sources: {sources}" if sources else "")


def _small_with_unit(value: float | None, unit: str) -> str:
    """Return a number with three significant digits and unit.

    A small number gets the prefix m (thousandth) or µ (millionth).
    """
    for scale, prefix in ((1.0, ""), (1e3, "m"), (1e6, "µ")):
        if value is None or abs(value) * scale >= 1 or value == 0:
            return with_unit(None if value is None else value * scale, f"{prefix}{unit}")
    return f"{value:.3g} {unit}"


def _wrapped(lines: Sequence[str]) -> list[str]:
    """Return the lines of text, wrapped to the width of the label's picture."""
    columns = int((_WIDTH - 2 * _MARGIN - 96) / _CHARACTER)
    return [part for line in lines for part in textwrap.wrap(escape_controls(line), columns) or [""]]
