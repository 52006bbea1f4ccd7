"""Data type of a note below the energy label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Note:
    """A note.

    Attributes:
        category: `trust` (the figures are doubtful), `setting` (a setting failed), `finding` (an
            observation), `try` (a recommendation).
        text: one or two sentences.
        directive: line for the batch script, without `#SBATCH`; empty if there is none.
    """

    category: Literal["trust", "setting", "finding", "try"]
    text: str
    directive: str = ""
