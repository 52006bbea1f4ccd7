"""Reader of jobs with measured energies, for the simulator.

The input is the JSON output of `senergy acct --json` or `senergy job --json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_energy.simulator.inputs import sacct_rows


def is_ours(document: object) -> bool:
    """Return whether a JSON document is output of slurm-energy.

    Such output comes from `senergy acct --json` or `senergy job --json`.
    """
    return isinstance(document, Mapping) and "senergy" in (document.get("meta") or {})


def line(job: Mapping[str, Any], units: str) -> dict[str, Any]:
    """Return the values of one job in the document, with the column names of `WorkloadRows`.

    Args:
        job: entry of the list `jobs`.
        units: unit of the jobs' sizes: `nodes`, `cpus` or `gpus`.

    Raises:
        KeyError, TypeError, AttributeError: the structure of the job is not as expected.
    """
    if "energy" not in job:
        return _line(job, units)
    stated, measured = sacct_rows.values_of_json(job, units), _line(_of_acct(job), units)
    if units == "gpus" and stated["units"] != "":
        del measured["units"]  # records count an AMD card with two dies as one GPU, Slurm counts two
    return stated | {name: value for name, value in measured.items() if value != ""}


def _of_acct(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a job of `senergy acct --json` to the form of a job of `senergy job --json`.

    In the given job, the keys of Slurm hold times and names, and the key `energy` holds the measured
    values. A time of submission of 0 means unknown, because the facts about the job may still be missing.
    """
    times, energy = job["time"], job["energy"] or {}
    return {
        "job_id": job["job_id"],
        "user": job["user"],
        "name": job["name"],
        "submit": times["submission"] or None,
        "allocated_nodes": job["allocation_nodes"],
        "start": times["start"],
        "elapsed_s": times["elapsed"],
        "energy_joules": None,
        "cpus": None,
        "nodes": [],
        **energy,
    }


def _line(job: Mapping[str, Any], units: str) -> dict[str, Any]:
    elapsed_s, joules = job["elapsed_s"], job["energy_joules"]
    submit = job["submit"] if job["submit"] is not None else job["start"]
    measured = joules is not None and elapsed_s
    return {
        "job_id": str(job["job_id"]),
        "user": job["user"] or "",
        "name": job["name"] or "",
        **{name: job.get(name) or "" for name in ("partition", "account", "state")},
        "submit_s": "" if submit is None else submit,
        "time_s": "" if elapsed_s is None else elapsed_s,
        "units": _units(job, units),
        "power_watts": joules / elapsed_s if measured else "",
    }


def _units(job: Mapping[str, Any], units: str) -> float | str:
    if units == "gpus":
        return sum(len(node["gpus"]) for node in job["nodes"]) or ""
    size = job["cpus"] if units == "cpus" else job["allocated_nodes"] or len(job["nodes"])
    return "" if size is None else float(size)
