"""Names of the files in the spool, the directory of records that are not delivered yet.

A record, its power trace, its observation and the reason of its rejection are files whose names
differ only in the suffix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

RECORD_SUFFIX, TRACE_SUFFIX, OBSERVATION_SUFFIX = ".json", ".trace", ".observation"
ATTACHMENT_SUFFIXES = (OBSERVATION_SUFFIX, TRACE_SUFFIX)
"""Suffixes of the files that are deleted before records."""


class SpoolableRecord(Protocol):
    """Interface of the data that an agent stores until it can deliver them to the controller.

    The data are a record of a job, or a period of the node's energy.
    """

    @property
    def record_id(self) -> str:
        """Unique id of the record of a job, or of the energy of the node in a time interval (period)."""

    @property
    def end(self) -> float:
        """End of the job or period in Unix seconds."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON data."""


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """An energy record in the spool.

    Attributes:
        name: file name of the record.
        record: the record as JSON data.
        trace, observation: power trace and observation in the format of docs/reference/protocol.md; None if
            the job has no trace or observation.
    """

    name: str
    record: dict[str, Any]
    trace: dict[str, Any] | None
    observation: dict[str, Any] | None = None

    @property
    def record_id(self) -> str:
        """Id of the record, which is part of its file name."""
        return record_id_of(self.name)

    @property
    def has_attachments(self) -> bool:
        """Whether the record has a trace or an observation."""
        return self.trace is not None or self.observation is not None

    def to_json(self, key: str) -> dict[str, Any]:
        """Return this record as an element of the JSON message that delivers records.

        The element contains the record, its trace and, if present, its observation. `key` is the name of the
        record in the element.
        """
        item = {key: self.record, "trace": self.trace}
        return item if self.observation is None else {**item, "observation": self.observation}


def trace_of(name: str) -> str:
    """Return the name of the file with the power trace of a record.

    Args:
        name: name of the record's file.
    """
    return name.removesuffix(RECORD_SUFFIX) + TRACE_SUFFIX


def attachments_of(name: str) -> tuple[str, ...]:
    """Return the file names of the attachments that may belong to the record file `name`.

    An attachment is a power trace or an observation.
    """
    return tuple(name.removesuffix(RECORD_SUFFIX) + suffix for suffix in ATTACHMENT_SUFFIXES)


def record_of(name: str) -> str:
    """Return the name of the record's file from the name of a file that belongs to the record.

    Such files are attachments of the record and the reason why it was rejected.
    """
    return name.rpartition(".")[0] + RECORD_SUFFIX


def observation_of(name: str) -> str:
    """Return the file name of the observation that belongs to the record file `name`."""
    return name.removesuffix(RECORD_SUFFIX) + OBSERVATION_SUFFIX


def record_id_of(name: str) -> str:
    """Return the record id that is part of a record's file name."""
    return name.removesuffix(".json").partition("-")[2]
