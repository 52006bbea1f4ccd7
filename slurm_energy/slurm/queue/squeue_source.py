"""Reader of the queue with one squeue command per call.

The parser rejects incomplete output, and no job name can forge a field. All fields but one exist in the same
form in all releases from Slurm 22.05 to 26.05. pyslurm is no alternative, because each build supports only
one release of Slurm, and only 25.11 is available. The JSON output of squeue differs between releases.
"""

from __future__ import annotations

import contextlib
import pwd
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UnavailableError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import NO_VALUES, new_delimiter, squeue_command
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns, queue_columns
from slurm_energy.slurm.queue.comment_flags import parse_comment_flags
from slurm_energy.slurm.queue.node_resources import read_nodes
from slurm_energy.slurm.release import release
from slurm_energy.slurm.tres import MAX_GPUS, parse_gpu_request, parse_tres

_FIELDS: Final = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "UserID", "State", "PriorityLong", "Nice"),
    *("Dependency", "Requeue", "BatchFlag", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "Deadline"),
    *("TimeLimit", "NumNodes", "NumCPUs", "NumTasks", "tres-alloc", "tres-per-job", "tres-per-node"),
    *(
        "tres-per-socket",
        "tres-per-task",
        "RestartCnt",
        "Account",
        "Partition",
        "QOS",
        "Reason",
        "Licenses",
        "admin_comment",
        "OverSubscribe",
        "Name",
    ),
)
_OPTIONS: Final = ("-a", "-h", "--local", "--noconvert", "-t", "PENDING,RUNNING")
_STATES: Final = {"PENDING": PENDING, "RUNNING": RUNNING}
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", re.ASCII)
_LEAST_PRIORITY: Final = 1
_SHARING: Final = "OverSubscribe"
_EXCLUSIVE: Final = "Exclusive"
_EXCLUSIVE_RELEASE: Final = (26, 5)
"""First release in which squeue has the field `_EXCLUSIVE`.

From then on, `_SHARING` is NO for shared nodes too.
"""
_WHOLE_NODES: Final = {
    _SHARING: frozenset({"NO", "USER", "MCS", "TOPO"}),
    _EXCLUSIVE: frozenset({"NODE", "USER", "MCS", "TOPO"}),
}
"""By field, the values that mean that no job of another user runs on the nodes of a job."""
_NODES_AGE_S: Final = 600.0
_LARGEST_UID: Final = 0xFFFFFFFF  # squeue prints the upper half of them as negative numbers

Row = dict[str, list[str]]


class SqueueSource:
    """A reader of the queue that runs squeue.

    squeue does not show two values: the site factor of a job, and whether an administrator set the job's
    priority. If all weights of priority/multifactor are 0, `_site_factors` derives the two values. It uses
    the job's priority and the site factors that slurmctld accepted before.

    Args:
        run: function that executes a command and returns the output of the command.
        applied_factors: site factors that slurmctld has accepted, by job id. `job_update.JobUpdater` fills
            this dictionary. `read` removes the entries of jobs that have left the queue. None means that no
            site factor was set.
        clock: function that returns Unix seconds.
    """

    def __init__(
        self,
        run: Runner = run_command,
        applied_factors: dict[int, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._clock = run, clock
        self._applied_factors = {} if applied_factors is None else applied_factors
        self._users: dict[int, str] = {}
        self._node_cpus: dict[str, int] = {}
        self._nodes_read_s = float("-inf")
        self._sharing_field = _SHARING

    def read(self) -> QueueColumns:
        """Run squeue once and return the queue.

        Raises:
            UnavailableError: slurmctld does not answer, or the output cannot be parsed.
        """
        delimiter = new_delimiter()
        taken_unix_s = self._clock()
        fields = [self._sharing_field if field == _SHARING else field for field in _FIELDS]
        try:
            row = _columns(self._run(squeue_command(_OPTIONS, fields, delimiter)), delimiter)
        except UnavailableError:
            self._sharing_field = _SHARING  # Slurm may have been downgraded
            raise
        try:
            queue = self._queue(taken_unix_s, row)
        except (ValueError, OverflowError) as error:
            raise UnavailableError(
                "squeue", f"its output cannot be parsed: {shown(str(error), 80)}"
            ) from None
        present = group_job_ids(queue.job_id, queue.array_job_id, queue.het_job_id)
        for job_id in self._applied_factors.keys() - set(present.tolist()):
            del self._applied_factors[job_id]
        return queue

    def _queue(self, taken_unix_s: float, row: Row) -> QueueColumns:
        state = np.array([_STATES[text] for text in row["State"]], np.int64)
        running = state == RUNNING
        job_id, priority, nice = (_ints(row[name]) for name in ("JobID", "PriorityLong", "Nice"))
        held = ~running & (priority == 0)
        tasks = [_task_count(text) for text in row["ArrayTaskID"]]
        single = np.array([text.isdecimal() for text in row["ArrayTaskID"]], np.bool_)
        array = single | np.array([count > 0 for count in tasks], np.bool_)
        array_job_id = np.where(array, _ints(row["ArrayJobID"]), 0)
        het_job_id = _ints(row["HetJobID"])
        address = group_job_ids(job_id, array_job_id, het_job_id)
        site_factor, fixed = self._site_factors(address, priority, nice, held)
        start_s, end_s = _times(row["StartTime"]), _times(row["EndTime"])
        eligible_s = _times(row["EligibleTime"])
        waits = np.array([text not in NO_VALUES for text in row["Dependency"]], np.bool_)
        gpus, kinds, memory_mib = _gpus_and_memory(row)
        uid = _ints(row["UserID"]) & _LARGEST_UID
        return queue_columns(
            taken_unix_s,
            job_id,
            array_job_id=array_job_id,
            array_task_id=[int(text) if text.isdecimal() else -1 for text in row["ArrayTaskID"]],
            tasks=np.maximum(tasks, 1),
            het_job_id=het_job_id,
            state=state,
            held=held,
            dependent=~running & (waits | (eligible_s > taken_unix_s)),
            fixed=fixed & ~running,
            eligible_s=eligible_s,
            # squeue fills in the expected start and end of a pending job.
            start_s=np.where(running, start_s, np.nan),
            end_s=np.where(running, end_s, np.nan),
            gpus=gpus,
            priority=priority,
            site_factor=site_factor,
            nice=nice,
            uid=uid,
            user=self._names(uid),
            gpu_kind=kinds,
            held_cpus=np.where(running, 0, self._held_cpus(taken_unix_s, row)),
            memory_mib=memory_mib,
            **_single_field_columns(row),
        )

    def _held_cpus(self, now_s: float, row: Row) -> np.ndarray:
        """Return the CPUs that each job takes by taking whole nodes, as an array of shape (n,).

        The value is 0 for a job that does not take whole nodes. For a job that does, it is the number of its
        nodes times the CPUs of the largest node in the job's partitions.

        The sizes of the nodes are read with one command. The command runs at most every `_NODES_AGE_S`, and
        only if any job takes whole nodes. If slurmctld does not answer, the earlier sizes are used.
        """
        whole = [text in _WHOLE_NODES[self._sharing_field] for text in row[_SHARING]]
        if any(whole) and self._is_exclusive_shown(now_s):
            whole = [False] * len(whole)  # unknown until the next call, which requests the other field
        if any(whole) and abs(now_s - self._nodes_read_s) >= _NODES_AGE_S:
            with contextlib.suppress(UnavailableError):
                nodes, self._nodes_read_s = read_nodes(self._run), now_s
                sizes: dict[str, int] = {}
                for node in nodes:
                    for partition in node.partitions:
                        sizes[partition] = max(sizes.get(partition, 0), node.cpus)
                self._node_cpus = sizes
        size_of = {
            text: max(self._node_cpus.get(partition, 0) for partition in text.split(","))
            for text in set(row["Partition"])
        }
        sizes_of_jobs = np.array([size_of[text] for text in row["Partition"]], np.int64)
        return np.where(whole, _ints(row["NumNodes"]) * sizes_of_jobs, 0)

    def _is_exclusive_shown(self, now_s: float) -> bool:
        """Return whether squeue must be asked for the field that shows if a job takes whole nodes.

        Only some releases of Slurm have this field. The result is for the next call of squeue.
        """
        if self._sharing_field == _EXCLUSIVE or abs(now_s - self._nodes_read_s) < _NODES_AGE_S:
            return False
        with contextlib.suppress(UnavailableError):
            if release(self._run) >= _EXCLUSIVE_RELEASE:
                self._sharing_field = _EXCLUSIVE
        return self._sharing_field == _EXCLUSIVE

    def _site_factors(
        self, address: np.ndarray, priority: np.ndarray, nice: np.ndarray, held: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each job's site factor and whether an administrator set its priority; shape (n,) each.

        The site factor is the part of Slurm's job priority that senergyctld sets. If all other weights are
        0, `priority = max(1, site_factor - nice)`. A held job has priority 0 and keeps its site factor. If a
        priority does not follow from the last site factor that slurmctld accepted, an administrator set it
        (`scontrol update priority=`, or another site factor). senergyctld leaves such a priority unchanged.

        Args:
            address: job ids by which scontrol addresses the jobs, from `group_job_ids`.
            priority: priorities as squeue shows them.
            nice: nice values as `--nice` takes them.
            held: True for held jobs.
        """
        ours = [self._applied_factors.get(job) for job in address.tolist()]
        is_ours = np.array([factor is not None for factor in ours], np.bool_)
        factor = np.array([0 if factor is None else factor for factor in ours], np.int64)
        expected = np.maximum(factor - nice, _LEAST_PRIORITY)
        # A job without a site factor has site factor 0 and therefore the minimum priority.
        least = np.maximum(-nice, _LEAST_PRIORITY)
        shown_factor = np.where(held | (priority == least), 0, priority + nice)
        fixed = is_ours & ~held & (priority != expected)
        return np.where(is_ours & ~fixed, factor, shown_factor), fixed

    def _names(self, uids: np.ndarray) -> list[str]:
        """Return login names; a uid without a name is returned as text.

        Each name is looked up once and cached, because a directory service may be slow.
        """
        numbers: list[int] = uids.tolist()
        for uid in set(numbers) - self._users.keys():
            with contextlib.suppress(KeyError, OverflowError):
                self._users[uid] = pwd.getpwuid(uid).pw_name
        return [self._users.get(uid, str(uid)) for uid in numbers]


def _single_field_columns(row: Row) -> dict[str, Any]:
    """Return those columns of the queue that are each read from a single field of squeue.

    The result maps the names of the columns in `QueueColumns` to their values.
    """
    return {
        # Slurm requeues only batch jobs, although squeue shows Requeue=1 for others too.
        "requeue": (_ints(row["Requeue"]) != 0) & (_ints(row["BatchFlag"]) != 0),
        "submit_s": _times(row["SubmitTime"]),
        "deadline_s": _times(row["Deadline"]),
        "time_limit_s": _each(_limit_s, row["TimeLimit"]),
        "nodes": _ints(row["NumNodes"]),
        "cpus": _ints(row["NumCPUs"]),
        "restart_count": _ints(row["RestartCnt"]),
        "account": _texts(row["Account"]),
        "partition": _texts(row["Partition"]),
        "qos": _texts(row["QOS"]),
        "name": row["Name"],
        # The first word only: the tasks of an array may differ, and some reasons name nodes.
        "reason": _texts([text.partition(",")[0] for text in row["Reason"]]),
        "licenses": _texts(row["Licenses"]),
        "array_tasks": _texts([text.partition("%")[0] for text in row["ArrayTaskID"]]),
        "flags": [parse_comment_flags(text) for text in row["admin_comment"]],
    }


def group_job_ids(job_id: np.ndarray, array_job_id: np.ndarray, het_job_id: np.ndarray) -> np.ndarray:
    """Return, for each queue row, the job id by which scontrol addresses the whole job; shape (n,).

    The whole job is the job array or heterogeneous job to which the row belongs. A value that scontrol sets
    for this id applies to all tasks or components. All other jobs have their own id.
    """
    group = np.maximum(array_job_id, het_job_id)
    return np.where(group > 0, group, job_id)


def _columns(output: str, delimiter: str) -> Row:
    """Split squeue's output into columns: the texts of each field.

    Only pending and running jobs are kept. In the output, every field ends with the delimiter. A newline
    follows the last delimiter of each row.

    Raises:
        UnavailableError: the output is not a whole number of rows.
    """
    fields = output.split(delimiter)
    rest = fields.pop()
    if len(fields) % len(_FIELDS) or rest.strip("\n"):
        raise UnavailableError("squeue", "its output is not a whole number of rows")
    row = {name: fields[position :: len(_FIELDS)] for position, name in enumerate(_FIELDS)}
    positions = [position for position, text in enumerate(row["State"]) if text in _STATES]
    if len(positions) < len(row["State"]):
        row = {name: [texts[position] for position in positions] for name, texts in row.items()}
    return row


def _ints(texts: Sequence[str]) -> np.ndarray:
    return np.array([0 if text in NO_VALUES else int(text) for text in texts], np.int64)


def _times(texts: Sequence[str]) -> np.ndarray:
    return np.array([float(text) if text.isdecimal() else np.nan for text in texts], np.float64)


def _texts(texts: Sequence[str]) -> list[str]:
    return ["" if text in NO_VALUES else text for text in texts]


def _each(read: Callable[[str], float], texts: Sequence[str]) -> np.ndarray:
    """Apply the parser `read` to each text and return the results as an array.

    `read` is called once for each distinct text.
    """
    values = {text: read(text) for text in set(texts)}
    return np.array([values[text] for text in texts], np.float64)


def _limit_s(text: str) -> float:
    """Return the time limit `[days-][hours:]minutes:seconds` in seconds; NaN (no limit) for other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return float("nan")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds


def _task_count(text: str) -> int:
    """Return the number of tasks in a list of array tasks such as `1-5,7,10-20:2%3`.

    The result is 0 if the job is no array.
    """
    total = 0
    for part in text.partition("%")[0].split(","):
        if match := _TASKS.fullmatch(part):
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            total += max(0, (last - first) // max(1, step) + 1)
    return total


def _gpus_and_memory(row: Row) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Return, for each job, the number of GPUs on all nodes, their GRES type, and the memory in MiB.

    An empty type means that the job names no type. A memory of 0 means unknown.

    The numbers in the list of allocated TRES take precedence over the requested ones.
    """
    columns = ("tres-alloc", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task")
    keys = list(zip(*(row[name] for name in columns), row["NumNodes"], row["NumTasks"], strict=True))
    by_key = {key: _request_of_row(*key) for key in set(keys)}
    gpus, memory_mib = (np.array([by_key[key][at] for key in keys], np.int64) for at in (0, 2))
    return gpus, [by_key[key][1] for key in keys], memory_mib


def _request_of_row(
    alloc: str, job: str, node: str, socket: str, task: str, nodes: str, tasks: str
) -> tuple[int, str, int]:
    accounted = parse_tres(alloc)
    memory_mib = accounted.memory_mib or 0
    times = ((job, 1), (node, int(nodes)), (socket, int(nodes)), (task, int(tasks)))
    requests = [(parse_gpu_request(text), times) for text, times in times if "gpu" in text]
    gpu_kind = next((request.gpu_kind for request, _ in requests if request.gpu_kind), None)
    if accounted.gpus is not None:
        return accounted.gpus, gpu_kind or accounted.gpu_kind or "", memory_mib
    total = next((request.gpus * times for request, times in requests if request.gpus), 0)
    return min(total, MAX_GPUS), gpu_kind or "", memory_mib
