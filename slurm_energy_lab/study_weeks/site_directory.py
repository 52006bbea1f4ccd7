"""A simulated site on disk, whose weeks of jobs are synthetic.

The directory contains the site's configuration and the files that `senergy study` reads.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from slurm_energy import atomic_file
from slurm_energy.config.loader import parse_source
from slurm_energy.errors import UsageError
from slurm_energy_lab.study_weeks.arrivals import DAY_S, WeekJob, draw_week_jobs, thesis_mix, trace_mix
from slurm_energy_lab.study_weeks.study_site import SiteMode, StudySite, site_mode, true_saving

OWN_CONFIGURATION: Final = """\
# The site's configuration. Nothing is tuned.
[tuning]
mode = "off"
"""
_COLUMNS: Final = (
    *("job_id", "name", "user", "account", "partition", "state", "nodes", "submit_s", "start_s", "end_s"),
    *("time_limit_s", "energy_joules", "speed"),
)
_MAX_DAYS: Final = 370


class SiteDirectory:
    """A simulated site whose files are stored in a directory.

    Each call of `run` computes all past days again, with the settings that were valid then.

    Args:
        path: an existing site.

    Raises:
        UsageError: the directory contains no site.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._state: dict[str, Any] = json.loads((path / "site.json").read_text(encoding="utf-8"))
            trace = self._state["trace"]
            mix = trace_mix(Path(trace), self._state["load"]) if trace else thesis_mix(self._state["load"])
        except FileNotFoundError as error:
            raise UsageError(f"{error.filename}", "does not exist", "senergy lab weeks DIR --begin") from None
        self.jobs: list[WeekJob] = draw_week_jobs(self._state["seed"], mix, _MAX_DAYS)
        first = date.fromisoformat(self._state["first_day"])
        self.epoch_s = datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()

    @classmethod
    def create(
        cls, path: Path, seed: int, first_day: date, trace: Path | None = None, load: float = 0.6
    ) -> SiteDirectory:
        """Create a site with a configuration file.

        Args:
            path: directory; created if it is absent.
            seed: seed of the random jobs and measurement errors.
            first_day: date of the first day, which must be a Monday.
            trace: CSV file of jobs for `trace_mix`; None means the job mix of the thesis.
            load: mean load of the site, as in `WeekMix`.

        Raises:
            UsageError: the first day is no Monday, or there is a site already.
        """
        if first_day.weekday():
            monday = first_day - timedelta(days=first_day.weekday())
            raise UsageError("first day", f"{first_day} is no Monday", f"such as {monday}")
        if (path / "site.json").exists():
            raise UsageError(
                f"{path}", "contains a site already", "leave out --begin, or name another directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        state = {
            "seed": seed,
            "first_day": first_day.isoformat(),
            "trace": str(trace.absolute()) if trace else "",
            "load": load,
            "modes": [],
        }
        atomic_file.write(path / "site.json", (json.dumps(state) + "\n").encode(), mode=0o644)
        atomic_file.write(path / "energy.toml", OWN_CONFIGURATION.encode(), mode=0o644)
        return cls(path)

    @property
    def days(self) -> int:
        """Number of days that the site has run."""
        return len(self._state["modes"])

    def run(
        self,
        days: int,
        at_midnight: Callable[[datetime], None] = lambda _: None,
        fault: str | None = None,
        *,
        has_effect: bool = True,
    ) -> None:
        """Simulate further days of the site, and write the measured data of all days so far.

        The data are the files `jobs-N.csv` and `energy-N.csv`. N is the number of all days that have been
        simulated so far, including the days of earlier calls.

        Args:
            days: number of further days to simulate.
            at_midnight: function that is called at the start of each day, before the configuration is read.
            fault: name of a Slurm account with a deliberate fault, which the study must find. The jobs of
                this account do not start on days on which the configuration tunes any jobs. None means no
                fault.
            has_effect: whether the site's configuration affects jobs. If False, every change of the
                configuration is a placebo.
        """
        site = StudySite(self._state["seed"], self.jobs, self.epoch_s)
        for number, stored in enumerate(self._state["modes"]):
            site.run_until((number + 1) * DAY_S, _mode_of(stored))
        for _ in range(days):
            begin_s = self.epoch_s + self.days * DAY_S
            at_midnight(datetime.fromtimestamp(begin_s, UTC))
            path = self.path / "energy.toml"
            mode = SiteMode()
            if has_effect:
                mode = site_mode(parse_source(path.read_text(encoding="utf-8"), path).config, fault)
            self._state["modes"].append(_mode_document(mode))
            site.run_until(self.days * DAY_S, mode)
        self._write(site)

    def true_saving(self, mode: SiteMode, first_day: int) -> float:
        """Return the true relative change of energy per unit of work that `mode` causes.

        The comparison covers the time from `first_day` to the last day.
        """
        return true_saving(self._state["seed"], self.jobs, mode, first_day, self.days - first_day)

    def true_job_saving(self, mode: SiteMode, first_day: int, partition: str) -> float:
        """Return the true effect of a mode of operation on the energy per unit of work in a partition.

        The effect is the relative change of the energy of jobs from `first_day` to the last day. The site is
        simulated twice for the comparison: with `mode` and without it.
        """
        ratios = []
        for used in (SiteMode(), mode):
            site = StudySite(self._state["seed"], self.jobs, self.epoch_s)
            site.run_until(first_day * DAY_S, SiteMode())
            site.run_until(self.days * DAY_S, used)
            totals = site.job_totals(first_day * DAY_S, self.days * DAY_S, partition)
            ratios.append(totals.joules / totals.work_node_s)
        return ratios[1] / ratios[0] - 1.0

    def _write(self, site: StudySite) -> None:
        with (self.path / f"jobs-{self.days}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, _COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(site.job_rows())
        with (self.path / f"energy-{self.days}.csv").open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(("start_s", "end_s", "joules"))
            lines.writerows(site.energy_rows())
        state = (json.dumps(self._state) + "\n").encode()
        atomic_file.write(self.path / "site.json", state, mode=0o644)


def _mode_document(mode: SiteMode) -> dict[str, Any]:
    return asdict(mode) | {"tuned": sorted(mode.tuned)}


def _mode_of(document: Mapping[str, Any]) -> SiteMode:
    return SiteMode(**{**document, "tuned": frozenset(document["tuned"])})
