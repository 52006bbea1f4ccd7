"""Composer of the line of text about a job's energy at the end of the job's output.

senergyd returns the line in its response to the end of the batch step. The plugin energy.so, which runs in
slurmstepd, writes the line to the standard error of the job's batch step.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Final

from slurm_energy.agent.jobs import job_records
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.config import Config
from slurm_energy.grid.present_factors import PresentFactors
from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.labels.recommendation import measured_recommendation
from slurm_energy.reports.usage import JobInfo, JobUsage

BATCH: Final = "batch"
MAX_LENGTH: Final = 400
"""Maximum number of characters of the line. energy.so reads a response of at most 512 bytes."""
_NOT_PLAIN: Final = re.compile(r"[^ !#-\[\]-~]")


class OutputLine:
    """Composer of the line of text about a job's energy.

    Args:
        config: returns the current configuration.

    Attributes:
        factors: present carbon intensity and price, from the last response of the controller.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self.factors = PresentFactors()

    def response(self, event: str, session: Session, step: str, sampled_s: float) -> dict[str, Any]:
        """Return the agent's response to the start or the end of a Slurm step of a known job.

        The response to the end of the batch step contains a line of text about the job's energy. The key of
        this text is `line`.

        Args:
            event: `start` or `end`.
            session: session of the job, sampled at this event.
            step: name of the step.
            sampled_s: time of the last sample in seconds since boot.
        """
        config = self._config()
        if event != "end" or step != BATCH or not config.agent.output_line:
            return {"known": True}
        record = job_records.running_record(session, session.unix_at(sampled_s))
        record = dataclasses.replace(record, devices=session.devices)
        text = _text(JobUsage((record,), JobInfo()), config, self.factors)
        return {"known": True} | ({"line": _plain(text)} if text else {})


def _text(usage: JobUsage, config: Config, factors: PresentFactors) -> str:
    joules = usage.energy_joules
    if joules is None:
        return ""
    mean = "" if usage.mean_watts is None else f", mean {with_unit(usage.mean_watts, 'W')}"
    duration = format_duration(usage.elapsed_s)
    head = f"senergy: {with_unit(joules, 'J')} in {duration} on {usage.first.node}{mean}"
    note = measured_recommendation(usage, config)
    advice = "" if note is None else f". Advice: #SBATCH {note.directive}: {note.text}"
    return f"{head}{factors.text(joules)}{advice}"


def _plain(text: str) -> str:
    """Return a text as printable ASCII characters without quotes and backslashes.

    The plugin energy.so prints the result as it is, and need not unescape it.
    """
    plain = _NOT_PLAIN.sub("?", text)
    return plain if len(plain) <= MAX_LENGTH else f"{plain[: MAX_LENGTH - 3]}..."
