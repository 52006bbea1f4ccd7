"""Changes of a text that can be reverted even after other parts of the text have changed.

All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.setup.conf_text import conf_lines, raw_lines

NOTE: Final = "slurm-energy setup"
"""Text in every comment that setup adds to a file of the site."""
_ASSIGNMENT: Final = re.compile(
    r"(?P<head>\s*(?P<key>[\w.]+)\s*=\s*\"?)(?P<value>[^\s#\"\\]*)(?P<rest>.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Hunk:
    """A replacement of whole lines in a text.

    Attributes:
        at: offset of the replaced lines in the original text.
        before: the replaced lines; empty for an insertion.
        after: the new lines; each ends with a line break.
        joined: whether a line break was added before the new lines, because the last line of the text had no
            line break.
        key: key of slurm.conf that the new lines set, in lower case; empty for other lines.
        items: items that were added to the value of the key.
    """

    at: int
    before: str
    after: str
    joined: bool = False
    key: str = ""
    items: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the hunk as a JSON object."""
        return {
            "at": self.at,
            "before": self.before,
            "after": self.after,
            "joined": self.joined,
            "key": self.key,
            "items": list(self.items),
        }


def from_document(document: dict[str, Any]) -> Hunk:
    """Return the hunk whose JSON object `Hunk.document` has returned."""
    return Hunk(**{**document, "items": tuple(document["items"])})


def apply(text: str, hunks: Iterable[Hunk]) -> str:
    """Apply a list of text changes (hunks) to a text, and return the result.

    The offsets of all hunks refer to the given text. Insertions at the same offset keep the order of
    `hunks`.
    """
    parts: list[str] = []
    at = 0
    for hunk in sorted(hunks, key=lambda one: one.at):
        parts += [text[at : hunk.at], _line_break(hunk.after) if hunk.joined else "", hunk.after]
        at = hunk.at + len(hunk.before)
    return "".join([*parts, text[at:]])


def revert(text: str, hunks: Sequence[Hunk]) -> tuple[str, list[Hunk]]:
    """Remove the lines that setup added to a text, even if the text has changed since.

    A hunk is one replacement of lines that setup made. Lines that setup did not add are never removed. If
    the site has changed a value that setup had extended, only the items that setup added are removed from
    the value.

    Returns:
        The new text, and the hunks that could not be reverted. These are hunks of which no line was found,
        hunks that set several lines of which the site has edited some, and hunks whose items the site has
        moved to a line in another form, for example a continued line.
    """
    missing = []
    ordered = sorted(hunks, key=lambda one: one.at)
    for hunk in reversed(ordered):
        reverted = _revert_one(text, hunk)
        if reverted is None:
            missing.append(hunk)
        else:
            text = reverted
    return text, missing


def _revert_one(text: str, hunk: Hunk) -> str | None:
    """Undo one change (hunk) of a text. Return None if it cannot be reverted, see `revert`."""
    at = _find_lines(text, hunk.after, hunk.at)
    if at is None:
        return _revert_changed(text, hunk)
    head, tail = text[:at], text[at + len(hunk.after) :]
    if hunk.joined and not tail:
        head = head.removesuffix(_line_break(hunk.after))
    return head + hunk.before + tail


def _revert_changed(text: str, hunk: Hunk) -> str | None:
    """Revert a change of a text although parts of the changed lines were edited later.

    The function is called if the changed lines are no longer found as a whole. The lines that the site has
    not edited are reverted. A change of several lines, not counting comments of setup, is not reverted in
    part.

    Return the new text. Return None if the change has several lines, if none of its lines is left, or if the
    items that setup added would stay set.
    """
    lines = list(raw_lines(text))
    after = list(raw_lines(hunk.after))
    if sum(NOTE not in line for line in after) > 1:
        return None
    comments = {line.strip() for line in after if NOTE in line}
    values = {line.strip() for line in after if NOTE not in line}
    remains = [number for number, line in enumerate(lines) if line.strip() in comments]
    unchanged = [number for number, line in enumerate(lines) if line.strip() in values]
    setting = [number for number, line in enumerate(lines) if hunk.key and _key(line) == hunk.key]
    if not remains and not unchanged:
        return None
    new = dict.fromkeys(remains, "")
    if unchanged:
        new |= dict.fromkeys(unchanged, "")
        new[unchanged[0]] = hunk.before
    elif setting:
        new[setting[-1]] = _without_items(lines[setting[-1]], hunk.items)
    elif remains:
        new[remains[0]] = hunk.before
    reverted = "".join(new.get(number, line) for number, line in enumerate(lines))
    # The site may have moved the items to a line in another form, for example a continued line.
    return None if not unchanged and _has_items(reverted, hunk) else reverted


def _has_items(text: str, hunk: Hunk) -> bool:
    """Return whether the value of the hunk's key in a text still has an item that setup added."""
    values = [value for line in conf_lines(text) for key, value in line.pairs if key == hunk.key]
    items = {item.strip().lower() for item in values[-1].split(",")} if values else set()
    return not items.isdisjoint(item.lower() for item in hunk.items)


def _key(line: str) -> str:
    match = _ASSIGNMENT.match(line)
    return match["key"].lower() if match else ""


def _without_items(line: str, added: Iterable[str]) -> str:
    """Return a line `Key=a,b` without the items that setup added; an empty text if no item remains."""
    match = _ASSIGNMENT.match(line)
    assert match is not None
    folded = {item.lower() for item in added}
    items = [item for item in match["value"].split(",") if item.lower() not in folded]
    return f"{match['head']}{','.join(items)}{match['rest']}" if any(items) else ""


def _find_lines(text: str, lines: str, near: int) -> int | None:
    """Return the offset at which the given lines occur in a text; None if they do not occur.

    The lines are found only if they begin at the start of a line of the text. If they occur several
    times, the occurrence nearest to the offset `near` is returned.
    """
    offsets = []
    at = text.find(lines)
    while at >= 0:
        if at == 0 or text[at - 1] == "\n":
            offsets.append(at)
        at = text.find(lines, at + 1)
    return min(offsets, key=lambda one: abs(one - near), default=None)


def _line_break(text: str) -> str:
    return "\r\n" if text.endswith("\r\n") else "\n"
