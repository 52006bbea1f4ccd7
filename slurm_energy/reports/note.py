"""A remark under the energy label. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Note:
    """One remark.

    Attributes:
        kind: `trust` (read the figures with care), `setting` (something did not work), `finding` (what the
            figures show), `try` (idea).
        text: one or two sentences.
        directive: line for the batch script, without `#SBATCH`; empty if there is none.
    """

    kind: Literal["trust", "setting", "finding", "try"]
    text: str
    directive: str = ""
