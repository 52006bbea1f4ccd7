"""Shorten the keys of knobs (hardware settings) in messages. A key has the form `NAME[DOMAIN]`.

The keys of many similar knobs are joined into one word, such as `cpufreq.governor[policy0-63]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_KEY = re.compile(r"(?P<name>[^\[]+)\[(?P<domain>.*)\]")
_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d+)")


def split_key(key: str) -> tuple[str, str]:
    """Split the key of a hardware setting (knob), `NAME[DOMAIN]`, into name and domain.

    The domain names the device, for example `policy0-63`. The domain of a key without brackets is empty.
    """
    match = _KEY.fullmatch(key)
    return (match["name"], match["domain"]) if match else (key, "")


def join_keys(keys: Iterable[str]) -> str:
    """Join the keys of settings (knobs) by name into a short text for messages.

    An example is `cpufreq.governor[policy0-63], cpufreq.boost[all]`.
    """
    domains_by_name: dict[str, list[str]] = {}
    for key in keys:
        name, domain = split_key(key)
        domains_by_name.setdefault(name, []).append(domain)
    return ", ".join(f"{name}[{join_domains(domains)}]" for name, domains in domains_by_name.items())


def join_domains(domains: Sequence[str]) -> str:
    """Join the domains of hardware settings with commas, to shorten messages.

    A domain names the device of a setting, such as `policy0`. Consecutive numbers after the same word are
    shortened, as in `policy0-63`.
    """
    runs: list[tuple[str, int, int]] = []
    for domain in domains:
        match = _NUMBERED.fullmatch(domain)
        if match is None:
            runs.append((domain, -1, -1))
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
