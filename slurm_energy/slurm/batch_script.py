"""Parser of the resources that the #SBATCH lines of a batch script request. The rules are sbatch's."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.sbatch_options import LONG, options, words
from slurm_energy.slurm.script_fingerprint import DIRECTIVE, fingerprint

MAX_BYTES: Final = 4 << 20
_ENERGY: Final = "energy-"
_HET: Final = ("hetjob", "packjob")
_COUNT = re.compile(r"(\d{1,9})([kKmM]?)")
_GRES = re.compile(r"gpu(?::(?P<kind>[A-Za-z][^:=,()]*))?(?:[:=](?P<count>\d{1,6}))?(?:\(.*\))?")
_TIMES: Final = (
    (re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"), (86400, 3600, 60, 1)),
    (re.compile(r"(\d+):(\d+):(\d+)"), (3600, 60, 1)),
    (re.compile(r"(\d+)(?::(\d+))?"), (60, 1)),
)


@dataclass(frozen=True, slots=True)
class BatchScript:
    """The job that a batch script requests.

    A field is None if the script does not set the value.

    Attributes:
        path: path of the script as the user gave it.
        name: job name, by default the name of the file.
        command: first command line of the script, for display.
        fingerprint: digest of the script and its arguments from `script_fingerprint.fingerprint`.
        nodes, cpus, gpus: numbers on all nodes together, as Slurm counts the request.
        gpu_kind: Slurm's GRES type of the GPUs.
        time_limit_s: time limit in seconds, a multiple of 60; None means the partition's limit, or no limit.
        partition: the first partition that the script names.
        account: Slurm account to charge.
        flags: energy flags by their name in the job-control environment (`ENERGY_POLICY`, ...), unchecked.
        tasks: number of array tasks; 1 for a job without an array.
        notes: warnings about ignored options and uncertain values, one line each.
    """

    path: str
    name: str
    command: str
    fingerprint: str
    nodes: int
    cpus: int
    gpus: int
    gpu_kind: str | None = None
    time_limit_s: float | None = None
    partition: str | None = None
    account: str | None = None
    flags: dict[str, str] = field(default_factory=dict)
    tasks: int = 1
    notes: tuple[str, ...] = ()


def read_content(path: Path) -> bytes:
    """Return the contents of a batch script; of a script that is too long, only the beginning.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "name a batch script") from None


def read_script(
    path: str, content: bytes, arguments: Sequence[str] = (), extra: Sequence[str] = ()
) -> BatchScript:
    """Parse a batch script.

    Args:
        path: path of the script, for the job name and for messages.
        content: contents of the script.
        arguments: arguments of the script, which are part of its fingerprint.
        extra: options of the sbatch command line, which override those in the script.

    Raises:
        UsageError: sbatch would reject the script, or a needed value is invalid; names file and line.
    """
    _check_form(path, content)
    reader = _Lines(path, content)
    given = {name: (value, f"{path}: line {line}") for line, name, value in reader.given}
    given |= {name: (value, "--sbatch") for name, value in options(extra)}
    unknown = [name for name in given if name not in LONG]
    notes = reader.notes + [f"--{shown(name.lstrip('-'))}: unknown option, ignored" for name in unknown]
    return _Request(given).script(path, reader.command, content, arguments, notes)


def effective_options(path: str, content: bytes, extra: Sequence[str] = ()) -> dict[str, str | None]:
    """Return the options with which sbatch would submit a script, values by long name of the option.

    A value of None means that the option has no value.

    Args:
        path: path of the script, for messages.
        content: contents of the script.
        extra: options of the sbatch command line, which override those in the script.

    Raises:
        UsageError: sbatch would reject the script or an option, or the script is a heterogeneous job.
    """
    _check_form(path, content)
    reader = _Lines(path, content)
    if reader.heterogeneous:
        raise UsageError(path, "is a heterogeneous job", "only jobs of one component are supported")
    return {name: value for _, name, value in reader.given} | dict(options(extra))


def parse_time_limit(text: str, name: str = "--time") -> float | None:
    """Parse a time limit in any form that Slurm accepts, rounded up to minutes as Slurm does.

    Args:
        text: the time limit as the user wrote it.
        name: name of the option, for the error.

    Returns:
        Seconds; None means no limit.

    Raises:
        UsageError: the text is not a time limit.
    """
    if text.upper() in ("INFINITE", "UNLIMITED", "-1", "0"):
        return None
    for form, sizes in _TIMES:
        match = form.fullmatch(text)
        if match and len(text) <= 20:
            seconds = sum(int(part or 0) * size for part, size in zip(match.groups(), sizes, strict=True))
            return math.ceil(seconds / 60) * 60.0 or None
    raise UsageError(f"{name}: '{shown(text)}' is not a time", todo="write 30, 1:30:00 or 2-12:00:00")


def _check_form(path: str, content: bytes) -> None:
    """Raise a UsageError for a file that sbatch would reject as a batch script."""
    if not content.startswith(b"#!"):
        raise UsageError(path, "its first line does not begin with #!", "begin with #!/bin/bash")
    if b"\0" in content:
        raise UsageError(path, "it has NUL bytes", "name a script")
    if b"\r\n" in content:
        raise UsageError(path, "it has DOS line ends", "convert it: sed -i 's/\\r$//' FILE")
    if len(content) > MAX_BYTES:
        raise UsageError(path, f"longer than {MAX_BYTES >> 20} MiB")


class _Lines:
    """The parts of a batch script that matter for a prediction.

    Attributes:
        given: line number, long option name and value of each option before the first command. If the value
            is None, the option has no value.
        notes: warnings, one line each.
        command: the first command line; an empty value means none.
        heterogeneous: whether the script is a heterogeneous job. Only its first component is parsed.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self.given: list[tuple[int, str, str | None]] = []
        self.notes: list[str] = []
        self.command = ""
        self.heterogeneous = False
        late = []
        for number, raw in enumerate(content.split(b"\n"), 1):
            line = raw.decode("utf-8", "replace")
            if not raw.startswith(DIRECTIVE):
                if not self.command and line.strip() and not line.lstrip().startswith("#"):
                    self.command = line.strip()
            elif self.command:
                late.append(number)
            elif not self.heterogeneous:
                self.heterogeneous = self._store_options(path, number, line[len(DIRECTIVE) :])
        if late:
            self.notes.append(f"line {late[0]}: #SBATCH after the first command is ignored")
        if self.heterogeneous:
            self.notes.append("a heterogeneous job: only its first component is predicted")

    def _store_options(self, path: str, number: int, text: str) -> bool:
        """Store the options in one #SBATCH line of a batch script.

        Args:
            path: path of the script, for error messages.
            number: line number, from 1.
            text: the line after #SBATCH.

        Returns:
            True if the line starts another component of a heterogeneous job. Such a line has no options.
        """
        try:
            option_words = words(text)
            if option_words[:1] and option_words[0] in _HET:
                return True
            self.given += [(number, name, value) for name, value in options(option_words)]
        except UsageError as error:
            raise UsageError(f"{path}: line {number}: {error.what}", error.why, error.todo) from None
        return False


class _Request:
    """The options of a job request. Each option has its last value and the origin of this value.

    The origin (file and line, or command line) is text for messages.
    """

    def __init__(self, given: dict[str, tuple[str | None, str]]) -> None:
        self._given = given
        self.notes: list[str] = []

    def script(
        self, path: str, command: str, content: bytes, arguments: Sequence[str], notes: Sequence[str]
    ) -> BatchScript:
        nodes, tasks = self._nodes_and_tasks()
        gpus, gpu_kind = self._gpus(nodes, tasks)
        if "gpus-per-task" not in self._given and (per_gpu := self._count("ntasks-per-gpu")) and gpus:
            tasks = max(tasks, per_gpu * gpus)
        cpus = tasks * (self._count("cpus-per-task") or 1)
        if (per_gpu := self._count("cpus-per-gpu")) and gpus:
            cpus = max(cpus, per_gpu * gpus)
        limit = self._text("time")
        return BatchScript(
            path=path,
            name=self._text("job-name") or PurePath(path).name,
            command=command,
            fingerprint=fingerprint(content, [os.fsencode(argument) for argument in arguments]),
            nodes=nodes,
            cpus=cpus,
            gpus=gpus,
            gpu_kind=gpu_kind,
            time_limit_s=parse_time_limit(limit, self._place("time")) if limit else None,
            partition=(self._text("partition") or "").split(",")[0] or None,
            account=self._text("account"),
            flags=self._flags(),
            tasks=self._array(),
            notes=(*notes, *self.notes),
        )

    def _nodes_and_tasks(self) -> tuple[int, int]:
        """Return the minimum number of nodes and the number of tasks.

        By default, each node has one task.

        Without --nodes, the number of nodes is 1, whatever the number of tasks is.
        """
        low = (self._text("nodes") or "").split("-")[0].split(",")[0]
        nodes = self._number("nodes", low) if low else None
        tasks, per_node = self._count("ntasks"), self._count("ntasks-per-node")
        nodes = max(1, nodes or 1)
        return nodes, tasks or nodes * (per_node or 1)

    def _gpus(self, nodes: int, tasks: int) -> tuple[int, str | None]:
        """Return the number of GPUs on all nodes, and their GRES type (None means not named).

        The first option that is set in this order decides: --gpus, --gpus-per-node, --gpus-per-task, --gres,
        --tres-per-task, --gpus-per-socket.
        """
        for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gpus-per-task", tasks)):
            text = self._text(name)
            if text:
                count, gpu_kind = self._sum([f"gpu:{item}" for item in text.split(",")], name)
                return count * times, gpu_kind
        for name, times in (("gres", nodes), ("tres-per-task", tasks)):
            count, gpu_kind = self._listed_gpus(name)
            if count:
                return count * times, gpu_kind
        sockets = (self._count("sockets-per-node") or 1) * nodes
        text = self._text("gpus-per-socket")
        items = [f"gpu:{item}" for item in text.split(",")] if text else []
        count, gpu_kind = self._sum(items, "gpus-per-socket")
        return count * sockets, gpu_kind

    def _listed_gpus(self, name: str) -> tuple[int, str | None]:
        """Return number and GRES type of the GPUs in the list that option `name` has as its value.

        Examples are `craynetwork:1,gpu:a100:2` and `cpu=2,gres/gpu=1`. The type is None if the list names
        none.
        """
        items = (self._text(name) or "").split(",")
        plain = [item.removeprefix("gres/").removeprefix("gres:") for item in items]
        return self._sum([item for item in plain if item == "gpu" or item.startswith(("gpu:", "gpu="))], name)

    def _sum(self, items: Sequence[str], name: str) -> tuple[int, str | None]:
        """Return the total number of GPUs in a list of requests, and the type of the GPUs.

        If the requests name several types, the first one is returned and a note is added. If no request
        names a type, the type is None.

        Args:
            items: requests such as `gpu:a100:2`.
            name: name of the option, for errors.
        """
        requests = [self._gres(item, name) for item in items]
        gpu_kinds = list(dict.fromkeys(gpu_kind for count, gpu_kind in requests if gpu_kind and count))
        if len(gpu_kinds) > 1:
            self.notes.append(
                f"{shown(' and '.join(gpu_kinds))}: all GPUs are counted as {shown(gpu_kinds[0])}"
            )
        return sum(count for count, _ in requests), next(iter(gpu_kinds), None)

    def _gres(self, text: str, name: str) -> tuple[int, str | None]:
        match = _GRES.fullmatch(text)
        if match is None:
            raise UsageError(f"{self._place(name)}: '{shown(text)}' is not a number of GPUs")
        return int(match["count"] or 1), match["kind"]

    def _flags(self) -> dict[str, str]:
        return {
            name.upper().replace("-", "_"): value
            for name, (value, _) in self._given.items()
            if name.startswith(_ENERGY) and name in LONG and value is not None
        }

    def _array(self) -> int:
        """Return the number of array tasks, at least 1. Items that cannot be parsed are skipped."""
        total = 0
        for part in (self._text("array") or "").partition("%")[0].split(","):
            match = re.fullmatch(r"(\d{1,8})(?:-(\d{1,8})(?::(\d{1,8}))?)?", part.strip())
            if match:
                first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
                total += max(0, (last - first) // max(1, step) + 1)
        return max(1, total)

    def _count(self, name: str) -> int | None:
        text = self._text(name)
        return self._number(name, text) if text else None

    def _number(self, name: str, text: str) -> int:
        match = _COUNT.fullmatch(text)
        if match is None:
            raise UsageError(f"{self._place(name)}: '{shown(text)}' is not a whole number")
        return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()]

    def _text(self, name: str) -> str | None:
        return self._given.get(name, (None, ""))[0] or None

    def _place(self, name: str) -> str:
        return f"{self._given[name][1]}: --{name}"
