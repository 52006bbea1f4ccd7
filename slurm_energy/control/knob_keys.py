"""Keys of knobs, `kind[place]`, for people: many of one kind become one word. Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_KEY = re.compile(r"(?P<kind>[^\[]+)\[(?P<place>.*)\]")
_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d+)")


def split(key: str) -> tuple[str, str]:
    """Return kind and place of a key; what has no place is its own kind."""
    match = _KEY.fullmatch(key)
    return (match["kind"], match["place"]) if match else (key, "")


def together(keys: Iterable[str]) -> str:
    """Return keys with places of one kind joined: `cpufreq.governor[policy0-63], cpufreq.boost[all]`."""
    kinds: dict[str, list[str]] = {}
    for key in keys:
        kind, place = split(key)
        kinds.setdefault(kind, []).append(place)
    return ", ".join(f"{kind}[{joined(places)}]" for kind, places in kinds.items())


def joined(places: Sequence[str]) -> str:
    """Join places: runs of consecutive numbers with one stem become `stemA-B`, others are listed."""
    runs: list[tuple[str, int, int]] = []
    for place in places:
        match = _NUMBERED.fullmatch(place)
        if match is None:
            runs.append((place, -1, -1))
            continue
        stem, number = match["stem"], int(match["number"])
        if runs and runs[-1][0] == stem and runs[-1][2] == number - 1:
            runs[-1] = (stem, runs[-1][1], number)
        else:
            runs.append((stem, number, number))
    return ",".join(_run(*run) for run in runs)


def _run(stem: str, first: int, last: int) -> str:
    if first < 0:
        return stem
    return f"{stem}{first}" if first == last else f"{stem}{first}-{last}"
