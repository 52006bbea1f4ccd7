"""Steps that the processes of a job report: the last report of each process, in bounded memory.

A report is cumulative and replaces the previous one, so a lost report loses nothing. It is checked completely
when the job's observation is built, because most reports are replaced before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from slurm_energy.diagnosis.json_codec import rank_from_json
from slurm_energy.diagnosis.steps import RankSteps
from slurm_energy.errors import UsageError

MAX_PROCESSES: Final = 256
"""Processes of a job on a node that may report: checking one at the end of the job takes a millisecond."""
MAX_REPORT_BYTES: Final = 48 * 1024
"""Maximum size of the report of one process."""
MAX_TOTAL_BYTES: Final = 8 << 20
"""Maximum size of the compressed reports of all processes of a job on a node."""


class StepReports:
    """Reports of the processes of one job on one node."""

    def __init__(self) -> None:
        self._reports: dict[str, bytes] = {}
        self._bytes = 0
        self.is_saved = True

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, process: str, steps: Mapping[str, Any], pid: int) -> None:
        """Store the report of a process.

        Args:
            process: key of the process, unique within the job on this node.
            steps: the report, as `json_codec.rank_to_json` returns it.
            pid: id of the process as the kernel reports it; 0 if it is unknown, as in another namespace.

        Raises:
            UsageError: the report is too large, or too many processes report.
        """
        known = self._reports.get(process, b"")
        if not known and len(self._reports) >= MAX_PROCESSES:
            raise UsageError(f"steps: more than {MAX_PROCESSES} processes of the job report on this node")
        text = json.dumps({**steps, "pid": pid or steps.get("pid")}, separators=(",", ":")).encode()
        if len(text) > MAX_REPORT_BYTES:
            raise UsageError(f"steps: {len(text)} bytes, more than {MAX_REPORT_BYTES}")
        packed = zlib.compress(text, 1)
        if self._bytes + len(packed) - len(known) > MAX_TOTAL_BYTES:
            raise UsageError(f"steps: the job's reports on this node exceed {MAX_TOTAL_BYTES} bytes")
        self._bytes += len(packed) - len(known)
        self._reports[process] = packed
        self.is_saved = False

    def ranks(self, node: str) -> tuple[list[RankSteps], int]:
        """Return the valid reports in the order of their ranks, and the number of malformed ones.

        Args:
            node: Slurm's name of the node.
        """
        ranks, malformed = [], 0
        for packed in self._reports.values():
            try:
                ranks.append(rank_from_json(json.loads(zlib.decompress(packed)), node))
            except (UsageError, ValueError, RecursionError, zlib.error):
                malformed += 1
        ranks.sort(key=lambda steps: (steps.rank is None, steps.rank or 0, steps.pid))
        return ranks, malformed

    def parts(self) -> list[bytes]:
        """Return the reports as pieces of bytes; `load` reads them when joined."""
        head = [[process, len(packed)] for process, packed in self._reports.items()]
        return [json.dumps(head).encode() + b"\n", *self._reports.values()]

    @classmethod
    def load(cls, data: bytes) -> StepReports:
        """Return the reports whose joined output of `parts` is `data`.

        Raises:
            ValueError, TypeError: `data` is malformed.
        """
        reports = cls()
        head, _, body = data.partition(b"\n")
        for process, length in json.loads(head):
            reports._reports[str(process)], body = body[:length], body[length:]
            reports._bytes += length
        if body or reports._bytes != sum(map(len, reports._reports.values())):
            raise ValueError("reports of the wrong length")
        return reports
