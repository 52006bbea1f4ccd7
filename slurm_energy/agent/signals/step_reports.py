"""Store of the steps (iterations) that the processes of a job report, in bounded memory.

Only the last report of each process is kept. A report contains all data since the start of the process. No
data are lost if an earlier report was lost. A report is checked completely only when the job's observation
is built, because most reports are replaced before that time.
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
"""Maximum number of processes of a job on a node that may report. To check one report takes a millisecond."""
MAX_REPORT_BYTES: Final = 48 * 1024
"""Maximum size of the report of one process."""
MAX_TOTAL_BYTES: Final = 5 << 20
"""Maximum uncompressed size of the reports of all processes of a job on a node. At the end of the job the
reports become objects in memory of about 20 times this size. The compressed size would not bound that
memory, because repeated text compresses to almost nothing."""


class StepReports:
    """Reports of the processes of one job on one node.

    Attributes:
        packed_bytes: memory of the compressed reports.
        is_saved: whether the current reports are on disk.
    """

    def __init__(self) -> None:
        self._reports: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._total_bytes = 0
        self.packed_bytes = 0
        self.is_saved = True

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, process: str, steps: Mapping[str, Any], pid: int) -> None:
        """Store the report of a process.

        Args:
            process: key of the process, unique within the job on this node.
            steps: the report in the format that `json_codec.rank_to_json` returns.
            pid: process id as the kernel reports it; 0 if unknown, for example because the process is in
                another namespace.

        Raises:
            UsageError: the report is too large, or too many processes report.
        """
        if process not in self._reports and len(self._reports) >= MAX_PROCESSES:
            raise UsageError(f"steps: more than {MAX_PROCESSES} processes of the job report on this node")
        text = json.dumps({**steps, "pid": pid or steps.get("pid")}, separators=(",", ":")).encode()
        if len(text) > MAX_REPORT_BYTES:
            raise UsageError(f"steps: {len(text)} bytes, more than {MAX_REPORT_BYTES}")
        if self._total_bytes + len(text) - self._sizes.get(process, 0) > MAX_TOTAL_BYTES:
            raise UsageError(f"steps: the job's reports on this node exceed {MAX_TOTAL_BYTES} bytes")
        self._store(process, zlib.compress(text, 1), len(text))
        self.is_saved = False

    def ranks(self, node: str) -> tuple[list[RankSteps], int]:
        """Return the valid reports ordered by rank, and the number of malformed reports.

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

    def copied(self) -> StepReports:
        """Return a copy that later reports do not change."""
        copy = StepReports()
        copy._reports, copy._sizes = dict(self._reports), dict(self._sizes)
        copy._total_bytes, copy.packed_bytes = self._total_bytes, self.packed_bytes
        return copy

    def parts(self) -> list[bytes]:
        """Return the reports as pieces of bytes. Joined, the pieces are the input of `load`."""
        head = [[process, len(packed)] for process, packed in self._reports.items()]
        return [json.dumps(head).encode() + b"\n", *self._reports.values()]

    @classmethod
    def load(cls, data: bytes) -> StepReports:
        """Return the reports of a job's steps from the bytes that `parts` has produced.

        `data` consists of the joined pieces that `parts` returns.

        Raises:
            ValueError, TypeError: `data` is malformed.
        """
        reports = cls()
        head, _, body = data.partition(b"\n")
        for process, length in json.loads(head):
            packed, body = body[:length], body[length:]
            if len(packed) != length:
                raise ValueError("reports of the wrong length")
            size = _unpacked_bytes(packed)
            # An older release permitted more: the last ones are lost.
            if reports._total_bytes + size <= MAX_TOTAL_BYTES:
                reports._store(str(process), packed, size)
        if body:
            raise ValueError("reports of the wrong length")
        return reports

    def _store(self, process: str, packed: bytes, size: int) -> None:
        self.packed_bytes += len(packed) - len(self._reports.get(process, b""))
        self._total_bytes += size - self._sizes.get(process, 0)
        self._reports[process], self._sizes[process] = packed, size


def _unpacked_bytes(packed: bytes) -> int:
    """Return the uncompressed size of a report.

    The size of a damaged report is 0. Such a report is counted as malformed later.
    """
    try:
        return len(zlib.decompress(packed))
    except zlib.error:
        return 0
