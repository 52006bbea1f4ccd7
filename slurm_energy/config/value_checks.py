"""Declaration of configuration keys, and checks of their values.

A check is a function that returns the fault of a value as text, or None if the value is valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from slurm_energy.errors import UsageError
from slurm_energy.quantities import parse_sampling_interval

Check = Callable[[Any], str | None]
GROUP_MARK = "%"
"""Prefix of a group name in `controller.operators`, as in sudoers."""

ROOT_SOCKET_SUFFIX = ".root"
"""Suffix of the path of the agent's second socket, to which only root can connect."""


def key(
    default: Any, doc: str, check: Check | None = None, show: Any = None, replaces: str | None = None
) -> Any:
    """Declare a configuration key as a dataclass field.

    Args:
        default: value of a missing key; a list or dict is copied for each instance.
        doc: one or two sentences for the example file and the reference page.
        check: function that returns the fault of a value; None means that any value of the type is valid.
        show: value to show in the example file; None means the default.
        replaces: earlier name of the key, which is accepted with a warning for one minor release.
    """
    metadata = {
        "doc": doc,
        "check": check,
        "show": default if show is None else show,
        "replaces": replaces,
    }
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


LOG_LEVELS = ("debug", "info", "warning", "error")


def between(low: float, high: float) -> Check:
    """Return a check that accepts numbers from `low` to `high`, inclusive."""
    return lambda value: None if low <= value <= high else f"must be from {low:g} to {high:g}"


def divisor_of_a_day(value: int) -> str | None:
    """Check that a number of seconds divides a day and is at least a minute."""
    good = 60 <= value <= 86400 and 86400 % value == 0
    return None if good else "must be a divisor of 86400 from 60 to 86400, for example 900 or 3600"


def parsed_by(parse: Callable[[str], object]) -> Check:
    """Return a check that accepts a text if `parse` accepts the text.

    A check is a function that tests a value of the configuration. This check calls `parse` with the value. If
    `parse` raises a ValueError, the check returns the message of the ValueError as the description of the
    fault. If `parse` raises no ValueError, the value is valid and the check returns None.
    """

    def check(value: str) -> str | None:
        try:
            parse(value)
        except ValueError as error:
            return str(error)
        return None

    return check


def one_of(*words: str) -> Check:
    """Return a function that checks whether a value is one of the given words.

    The function returns an error message if the value is none of the words.
    """
    return lambda value: None if value in words else f"must be one of {', '.join(words)}"


def values_of(*words: str) -> Check:
    """Return a check that accepts tables whose values are among the given words.

    The keys of the tables must be names without blanks and commas.
    """

    def check(value: dict[str, str]) -> str | None:
        wrong = [name for name, word in value.items() if word not in words]
        if wrong:
            return f"'{wrong[0]}' must be one of {', '.join(words)}"
        return keyed_words(value)

    return check


MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of the path of a Unix socket (sun_path in unix(7) without the final NUL)."""


def socket_path(extra: str) -> Check:
    """Return a check that accepts paths of Unix sockets to which the suffix `extra` can be appended."""
    max_bytes = MAX_SOCKET_PATH_BYTES - len(extra)
    return lambda value: (
        None
        if len(str(value).encode()) <= max_bytes
        else f"must be at most {max_bytes} bytes, as a socket's path"
    )


def user_names(value: list[str]) -> str | None:
    """Check a list of user names or uids. Return None, or the fault.

    Group names are rejected.
    """
    wrong = [name for name in value if not _USER.fullmatch(name)]
    if any(name.startswith(GROUP_MARK) for name in wrong):
        return "must be users: groups can be named in controller.operators only"
    return "must be user names without blanks and commas" if wrong else None


def keyed_words(value: dict[str, str]) -> str | None:
    """Check that the keys of a table are names without blanks and commas.

    Return None if all keys are valid, otherwise the text of the fault.
    """
    wrong = [name for name in value if not _USER.fullmatch(name)]
    return "must have names without blanks and commas" if wrong else None


_USER = re.compile(r"[^\s,%][^\s,]{0,255}")


def model_name(value: str) -> str | None:
    """Check a value of --energy-model; an empty text is valid. Return None, or the fault."""
    fits = re.fullmatch(r"[A-Za-z0-9_.:/+-]{0,64}", value)  # as for --energy-model
    return None if fits else "must be at most 64 characters of A-Z a-z 0-9 _ . : / + -"


def cluster_name(value: str) -> str | None:
    """Check a cluster name by the rule of Slurm: return None, or the fault."""
    fits = re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", value)  # 40: slurm.conf(5), ClusterName
    return None if fits else "must be 1 to 40 characters of A-Z a-z 0-9 _ . -"


def ascending(value: tuple[float, float]) -> str | None:
    """Check that a pair of numbers (low, high) from the configuration satisfies 0 <= low <= high.

    Return None if it does, else a message that describes the fault.
    """
    return None if 0 <= value[0] <= value[1] else "must be [low, high] with 0 <= low <= high"


def at_least_one_user(value: list[str]) -> str | None:
    """Check that a configured list contains only user names or uids, and at least one of them.

    Return None if the list is valid, otherwise a description of the fault.
    """
    return user_names(value) if value else "must name at least one user"


def users_and_groups(value: list[str]) -> str | None:
    """Check a list of user names and groups; return the fault, or None if there is none.

    A group has the prefix `GROUP_MARK`.
    """
    names = [name.removeprefix(GROUP_MARK) for name in value]
    return user_names(names) and f"must be user names, or {GROUP_MARK} and a group's name, without blanks"


NODE_PARTS = ("cpu", "dram", "gpu", "rest")


def component_watts(value: dict[str, float]) -> str | None:
    """Check a table of maximum power in watts by component.

    Return None if the table is valid, otherwise a text that describes the fault. The components are cpu,
    dram, gpu, other and node.
    """
    wrong = [name for name in value if name not in ("cpu", "dram", "gpu", "other", "node")]
    if wrong:
        return f"'{wrong[0]}' is not one of cpu, dram, gpu, other, node"
    return None if all(1 <= watts <= 1e9 for watts in value.values()) else "must be from 1 to 1e9 watts"


def idle_watts(value: dict[str, float]) -> str | None:
    """Check a table of idle power in watts by component: return None, or the fault.

    Components are cpu, dram, gpu and other.
    """
    wrong = [name for name in value if name not in ("cpu", "dram", "gpu", "other")]
    if wrong:
        return f"'{wrong[0]}' is not one of cpu, dram, gpu, other"
    return None if all(0 <= watts <= 1e5 for watts in value.values()) else "must be from 0 to 100000 watts"


def node_parts(value: list[str]) -> str | None:
    """Check a configured list of parts of a node.

    Each part must be in `NODE_PARTS`. Return None if the list is valid, otherwise a description of the
    fault.
    """
    wrong = [part for part in value if part not in NODE_PARTS]
    return f"'{wrong[0]}' is not one of {', '.join(NODE_PARTS)}" if wrong else None


def bmc_address(value: str) -> str | None:
    """Check that a text is the URL of a BMC or empty; return the fault, or None if there is none.

    The URL must begin with `ipmi://`, `https://` or `http://`.
    """
    if value and not value.startswith(("ipmi://", "https://", "http://")):
        return "must begin with ipmi://, https:// or http://"
    try:
        port = urlsplit(value).port
    except ValueError:
        return "must have a port from 1 to 65535"
    return "must have a port from 1 to 65535" if port == 0 else None


def one_line(value: str) -> str | None:
    """Check text that must have no line breaks and control characters: return None, or the fault."""
    return None if value.isprintable() else "must be one line without control characters"


def product_name(value: str) -> str | None:
    """Check the name of a product in the configuration, which must have a letter or digit.

    An empty name is also valid and stands for every product. Return None if the name is valid, else the
    fault.
    """
    named = not value or any(character.isalnum() for character in value)
    return None if named else "must have a letter or a digit"


def sampling_interval(value: str) -> str | None:
    """Check a sampling interval from the configuration, such as `10s` or `off`.

    Return None if the value is valid, else a message that describes the fault.
    """
    try:
        parse_sampling_interval(value)
    except UsageError:
        return 'must be "off", or from "1s" to "5m" such as "10s"'
    return None


def time_zone(value: str) -> str | None:
    """Check the name of a time zone; an empty text is valid. Return None, or the fault."""
    if value:
        from zoneinfo import ZoneInfo  # slow to import, and few commands check a time zone

        try:
            ZoneInfo(value)
        except (OSError, ValueError, LookupError):
            return "must be a time zone of this host such as 'Europe/Berlin'"
    return None
