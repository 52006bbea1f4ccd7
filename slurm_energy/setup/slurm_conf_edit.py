"""Edits of slurm.conf that add items to the value of a key.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.setup.conf_text import conf_lines, ends_continued, line_break
from slurm_energy.setup.hunk import NOTE, Hunk

_UNUSUAL: Final = "#\\\"' \t\r\n\v\f"


def add_items(text: str, key: str, items: Sequence[str], reason: str) -> Hunk:
    """Return the change that adds items to the value of a key in slurm.conf.

    The change edits the last line that sets the key. The old line is kept as a comment. If no line sets the
    key, a new line is added.

    Args:
        text: text of slurm.conf, or of a file that it includes.
        key: key as Slurm's documentation spells it.
        items: items to add. The value does not contain any of these items yet.
        reason: purpose of the items, for the comment.

    Raises:
        UnavailableError: the line cannot be changed safely.
    """
    folded, end, added = key.lower(), line_break(text), ",".join(items)
    line = next((one for one in reversed(list(conf_lines(text))) if folded in dict(one.pairs)), None)
    note = f"# {NOTE}: {reason}{end}"
    if line is None:
        at = 0 if ends_continued(text) else len(text)
        joined = at > 0 and not text.endswith("\n")
        return Hunk(at, "", f"{note}{key}={added}{end}", joined, folded, tuple(items))
    pair = line.pair
    if pair is None or any(character in pair[1] for character in _UNUSUAL):
        todo = f"add {added} to {key} by hand, then run this command again"
        raise UnavailableError(f"{key} in slurm.conf", "the line has an unusual form", todo)
    before = text[line.start : line.end]
    comment = f" {line.comment}" if line.comment else ""
    was = [f"# {NOTE}, was: {raw.rstrip(chr(13))}{end}" for raw in before.removesuffix("\n").split("\n")]
    after = f"{note}{''.join(was)}{key}={','.join(filter(None, (pair[1], added)))}{comment}{end}"
    return Hunk(line.start, before, after, False, folded, tuple(items))
