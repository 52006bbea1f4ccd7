"""JSON output of `senergy diagnose`. docs/reference/json.md documents the format; unknown values are null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.diagnosis.diagnose import Diagnosis
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.usage import JobUsage

FORMAT_VERSION = 1


def diagnosis_json(job: JobUsage, diagnosis: Diagnosis, settings: Sequence[Note]) -> dict[str, Any]:
    """Return the JSON document of `senergy diagnose --json`."""
    return {
        "meta": {"format": FORMAT_VERSION, "senergy": __version__},
        "job": {
            "job_id": job.first.job_id,
            "display_id": job.display_id,
            "cluster": job.first.cluster,
            "state": job.job.state,
            "exit_code": job.job.exit_code,
            "step_exit_code": job.job.step_exit_code,
            "nodes": list(job.nodes),
        },
        **diagnosis.to_json(),
        "settings": [{"text": note.text, "directive": note.directive or None} for note in settings],
    }
