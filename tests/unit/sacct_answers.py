"""A substitute for sacct, for tests.

It prints rows from dicts and remembers the arguments with which it was called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from slurm_energy.cli import acct_query
from slurm_energy.slurm import sacct
from slurm_energy.slurm.command import CommandFailedError
from slurm_energy.slurm.release import Release

RELEASE = Release(22, 5, 8)
START = 1795000000


def job(job_id: int, step: str = "", **changes: str) -> dict[str, str]:
    """Return one row of sacct for a job or step that matches the records of `report_examples`."""
    values = {
        "JobID": f"{job_id}.{step}" if step else str(job_id),
        "JobIDRaw": f"{job_id}.{step}" if step else str(job_id),
        "JobName": step or "gemm",
        "Cluster": "lab",
        "DBIndex": str(job_id + 1000),
        "Submit": str(START if step else START - 5),
        "Start": str(START),
        "End": str(START + 40),
        "State": "COMPLETED",
        "Account": "physics",
        "UID": "" if step else "1001",
        "User": "" if step else "alice",
        "NodeList": "n1",
        "Elapsed": "00:00:40",
    }
    return values | changes


class FakeSacct:
    """A fake `sacct` that prints `rows` in the format of sacct.

    If `failure` is not empty, the command fails and prints these lines to standard error.
    """

    def __init__(self, rows: Sequence[Mapping[str, str]], failure: Sequence[str] = ()) -> None:
        self.rows, self.failure = rows, failure
        self.calls: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(self, argv: Sequence[str]) -> str:
        self.calls.append(list(argv))
        self.environments.append(getattr(argv, "environment", {}))
        if self.failure:
            raise CommandFailedError("sacct", self.failure, 1)
        options = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
        names, delimiter = options["--format"].split(","), options["--delimiter"]
        lines = ["".join(row.get(name, "") + delimiter for name in names) + "\n" for row in self.rows]
        return "".join(lines)

    @property
    def selection(self) -> list[str]:
        """Options of the last sacct call, without the options that set the output format."""
        return [word for word in self.calls[-1][3:] if not word.startswith(("--delimiter", "--format"))]


def install(monkeypatch: pytest.MonkeyPatch, rows: Sequence[Mapping[str, str]], **options: Any) -> FakeSacct:
    """Replace the command sacct by a stand-in of release 22.05 that prints the given rows."""
    fake = FakeSacct(rows, **options)
    monkeypatch.setattr(acct_query, "installed_release", lambda: RELEASE)
    monkeypatch.setattr(sacct, "CommandRunner", lambda timeout_s: fake)
    return fake
