"""Data type of the notes below the energy label of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Note:
    """A note below the energy label of a job.

    Attributes:
        category: `trust` (measured values are uncertain), `setting` (a setting failed), `finding` (an
            observation), `try` (a recommendation).
        text: one or two sentences.
        directive: recommended line for the batch script, without `#SBATCH`; empty if the note recommends
            none.
    """

    category: Literal["trust", "setting", "finding", "try"]
    text: str
    directive: str = ""
