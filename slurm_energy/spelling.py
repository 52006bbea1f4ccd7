"""Suggestions for misspelt words.

All functions are pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from itertools import takewhile


def suggestion(word: str, known: Collection[str]) -> str:
    """Return `did you mean ...?` with the known words most similar to `word`.

    Return an empty text if no known word is similar. A word that differs only in case is suggested first,
    then up to 4 words that contain `word`, then the word with the smallest edit distance, then the most
    similar word by difflib.

    Args:
        word: an unknown word.
        known: words from which the suggestions are chosen.
    """
    lower = {name.lower(): name for name in known}
    lower_word = word.lower()
    if lower_word in lower:
        close = [lower[lower_word]]
    else:
        close = [name for name in known if lower_word and lower_word in name.lower()][:4]
        close = close or _mistyped(lower_word, lower) or difflib.get_close_matches(lower_word, lower, 1)
        close = [lower.get(name, name) for name in close]
    *first, last = close or [""]
    return f"did you mean {', '.join(first)}{' or ' if first else ''}{last}?" if last else ""


def suggestion_or_list(word: str, known: Collection[str]) -> str:
    """Return `did you mean ...?`, or `write one of ...` if no known word is similar."""
    return suggestion(word, known) or f"write one of {', '.join(known)}"


def _mistyped(word: str, known: Collection[str]) -> list[str]:
    """Return a list with the known word that has the smallest edit distance to `word`.

    The list is empty if no word is close enough.

    The distance must be at most a third of the length of the known word, or 1 for short words. Of several
    words with the smallest distance, the word that shares the longest prefix with `word` is returned.
    """
    near = [name for name in known if abs(len(name) - len(word)) < 3]
    ranked = ((edit_distance(word, name), -_common_beginning(word, name), name) for name in near)
    distance, _, name = min(ranked, default=(1, 0, ""))
    return [name] if name and distance <= max(1, len(name) // 3) else []


def _common_beginning(word: str, name: str) -> int:
    """Return the length of the common prefix of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, name, strict=False)))


def edit_distance(word: Sequence[object], name: Sequence[object]) -> int:
    """Return the optimal string alignment distance of two texts.

    The distance is the minimum number of insertions, deletions, substitutions and transpositions of
    neighbouring characters. Source: Damerau 1964.

    Args:
        word: text or bytes.
        name: value of the same type.
    """
    before: list[int] = []
    above = list(range(len(word) + 1))
    for j, theirs in enumerate(name, 1):
        row = [j]
        for i, ours in enumerate(word, 1):
            least = min(row[i - 1] + 1, above[i] + 1, above[i - 1] + (ours != theirs))
            if i > 1 and j > 1 and ours == name[j - 2] and word[i - 2] == theirs:
                least = min(least, before[i - 2] + 1)
            row.append(least)
        before, above = above, row
    return above[-1]
