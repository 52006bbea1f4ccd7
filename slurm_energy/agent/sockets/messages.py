"""Pure functions that parse messages to the agent, one JSON object per line, and check their fields.

The module `server` decides who may send a message. The job manager executes the operation of a message.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM

_STEP_NAME = re.compile(r"[A-Za-z0-9_+.-]{1,32}")
_CORE_LIST = re.compile(r"[0-9,-]{1,4096}")
_PROCESS = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_MAX_WATTS = 1e7
_MAX_UNITS = 1e15

MAX_USER_BRACKETS = 2000
"""Maximum opening brackets in a message of a user.

Each list and object takes more memory than its text. A report with all permitted phases and outliers has less
than 140 lists and objects. Brackets in its names count too.
"""


@dataclass(frozen=True, slots=True)
class ProgressMessage:
    """Progress report of one process of a job.

    The report contains completed units of work, steps of the program, or both.

    Attributes:
        job_id: Slurm's job id.
        process: key of the process, unique within the job on this node.
        units: units that the process has completed since its first report. If `is_increment` is true, units
            since its previous report. None if the message reports steps only.
        is_increment: whether `units` counts from the previous report instead of the first report.
        total: total units of work of the process; None if not reported.
        time_s: seconds since boot at which the last unit was completed; None if not reported.
        steps: steps (iterations) of the process so far, in the format of
            `diagnosis.json_codec.rank_to_json`, not checked; None if not reported.
    """

    job_id: int
    process: str
    units: float | None
    is_increment: bool
    total: float | None
    time_s: float | None
    steps: dict[str, Any] | None = None


def parse(line: bytes, max_brackets: int | None = None) -> dict[str, Any]:
    """Parse a message, which is one line with a JSON object.

    Args:
        line: the message.
        max_brackets: maximum opening brackets in the line; None for no maximum.

    Raises:
        UsageError: the line is not a JSON object, or has too many brackets.
    """
    if max_brackets is not None and line.count(b"[") + line.count(b"{") > max_brackets:
        raise UsageError(f"message: more than {max_brackets} lists and objects")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError("message: not JSON", shown(line[:40].decode("ascii", "replace"))) from None
    if not isinstance(message, dict):
        raise UsageError("message: not a JSON object")
    return message


def operation(message: Mapping[str, Any], operations: tuple[str, ...]) -> str:
    """Return the operation that a message requests.

    Args:
        message: the message.
        operations: names of all operations.

    Raises:
        UsageError: the operation is unknown.
    """
    name = message.get("op")
    if not isinstance(name, str) or name not in operations:
        raise UsageError(f"message: op {_shown(name)} is not known", todo=f"one of {', '.join(operations)}")
    return name


def environment(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a hook that a message contains.

    Raises:
        UsageError: the environment is absent, or a value in it is not text.
    """
    env = message.get("env")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise UsageError("message: env is not an object of strings")
    return env


def job_id(message: Mapping[str, Any]) -> int:
    """Return the job id that a message contains.

    Raises:
        UsageError: the field is absent or not a job id.
    """
    number = message.get("job_id")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**32:
        raise UsageError(f"message: job_id {_shown(number)} is not a job id")
    return number


def record_ids(message: Mapping[str, Any]) -> list[str] | None:
    """Return the record ids that a message contains; None stands for all records.

    Raises:
        UsageError: the field is not a list of strings.
    """
    ids = message.get("record_ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(text, str) for text in ids)):
        raise UsageError(f"message: record_ids {_shown(ids)} is not a list of record ids")
    return ids


def fresh(message: Mapping[str, Any]) -> bool:
    """Return whether a message requests a new sample for the response.

    Raises:
        UsageError: the field is neither true nor false.
    """
    value = message.get("fresh", False)
    if not isinstance(value, bool):
        raise UsageError(f"message: fresh {_shown(value)} is not true or false")
    return value


def step(message: Mapping[str, Any]) -> tuple[str, int, str, str | None, int | None, str | None]:
    """Return the fields of a message about a Slurm step.

    Returns:
        Event (`start` or `end`), job id, Slurm's name of the step, list of the job's cores, process id of the
        step's slurmstepd, and fingerprint of the batch script. The last three are None if not reported. Older
        senders do not report the cores, and only the batch step reports a fingerprint.

    Raises:
        UsageError: a field is malformed.
    """
    event, name = message.get("event"), message.get("step")
    if event not in ("start", "end"):
        raise UsageError(f"message: event {_shown(event)} is not start or end")
    if not isinstance(name, str) or not _STEP_NAME.fullmatch(name):
        raise UsageError(f"message: step {_shown(name)} is not a step name")
    cores, pid = message.get("job_cpus"), message.get("pid")
    if cores is not None and not (isinstance(cores, str) and _CORE_LIST.fullmatch(cores)):
        raise UsageError(f"message: job_cpus {_shown(cores)} is not a list of cores")
    if pid is not None and (not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31):
        raise UsageError(f"message: pid {_shown(pid)} is not a process id")
    script = message.get("fingerprint")
    if script is not None and not (isinstance(script, str) and FINGERPRINT_FORM.fullmatch(script)):
        raise UsageError(f"message: fingerprint {_shown(script)} is not 16 hexadecimal digits")
    return event, job_id(message), name, cores, pid, script


def progress(message: Mapping[str, Any]) -> ProgressMessage:
    """Return the progress report that a message contains.

    The message has either `units` (cumulative) or `add` (since the previous report). A message with `steps`
    needs neither of them.

    Raises:
        UsageError: a field is absent or malformed.
    """
    process = message.get("process")
    if not isinstance(process, str) or not _PROCESS.fullmatch(process):
        raise UsageError(f"message: process {_shown(process)} is not 1 to 64 letters, digits or _ . + -")
    steps = message.get("steps")
    if steps is not None and not isinstance(steps, dict):
        raise UsageError(f"message: steps {_shown(steps)} is not an object")
    names = [name for name in ("units", "add") if name in message]
    if len(names) > 1 or not (names or steps):
        raise UsageError("message: neither or both of units and add", todo="give one of them")
    units = _amount(message, names[0]) if names else None
    if units is None and names:
        raise UsageError(f"message: {names[0]} is null")
    total, time_s = _amount(message, "total"), _amount(message, "time_s")
    return ProgressMessage(job_id(message), process, units, names == ["add"], total, time_s, steps)


def _amount(message: Mapping[str, Any], name: str) -> float | None:
    """Return the number in field `name` of a message; None if the field is absent or null.

    Valid numbers are from 0 to 1e15. Any other value raises a UsageError.
    """
    value = message.get(name)
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value <= _MAX_UNITS):
        raise UsageError(f"message: {name} {_shown(value)} is not a number from 0 to {_MAX_UNITS:g}")
    return float(value)


def caps(message: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the power caps that a message contains, in watts.

    None removes a cap. A cap that the message does not contain is absent.

    Raises:
        UsageError: a value is not a power in watts.
    """
    caps: dict[str, float | None] = {}
    for name in ("cap_watts", "gpu_cap_watts"):
        if name not in message:
            continue
        value = message[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value <= _MAX_WATTS and math.isfinite(value)):
            raise UsageError(f"message: {name} {_shown(value)} is not a power in watts")
        caps[name] = None if value is None else float(value)
    return caps


def _shown(value: Any) -> str:
    """Return a value as text for an error message.

    Only the type of a list or object is shown, not its contents.
    """
    if isinstance(value, (dict, list)):
        return "{...}" if isinstance(value, dict) else "[...]"
    return shown(repr(value))
