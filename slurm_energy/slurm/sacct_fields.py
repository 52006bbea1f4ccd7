"""Fields of `sacct --format` in the releases from 22.05 to 26.05: names, widths, treatment of long values.

The fields have the order in which sacct lists them and searches for abbreviated names. Source: `fields` in
src/sacct/sacct.c and the `print_fields_*` functions in src/common/print_fields.c of each release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.release import Release

Overflow = Literal["cut", "widen", "date", "cut_date", "hash"]
CUT: Final = "cut"
"""Text that is longer than the column ends in `+`."""
WIDEN: Final = "widen"
"""Text, such as a number or duration, is never cut. Text longer than the column widens the row."""
DATE: Final = "date"
"""Times that are longer than the column are printed as `date_overflow` describes."""


@dataclass(frozen=True, slots=True)
class SacctField:
    """A field of `sacct --format`.

    Attributes:
        name: name of the field, and header of its column.
        width: default number of characters; a negative number means that the field is left-justified.
        doc: meaning, for users.
        overflow: treatment by sacct of a value that is longer than the column.
        since: first release with the field, as (major, minor).
        before: first release without the field; None means that the newest release has the field.
    """

    name: str
    width: int
    doc: str
    overflow: Overflow = CUT
    since: tuple[int, int] = (22, 5)
    before: tuple[int, int] | None = None

    def exists_in(self, release: Release) -> bool:
        """Return whether a Slurm release has this field of sacct with this width."""
        return release >= self.since and (self.before is None or release < self.before)


_F = SacctField

SACCT_FIELDS: Final = (
    _F("Account", 10, "account of the job"),
    _F("AdminComment", 15, "comment of an administrator"),
    _F("AllocCPUS", 10, "allocated CPUs", WIDEN),
    _F("AllocNodes", 10, "allocated nodes; 0 while pending"),
    _F("AllocTRES", 10, "allocated trackable resources"),
    _F("AssocID", 7, "number of the association of user, account and cluster", WIDEN),
    _F("AveCPU", 10, "mean CPU time of the tasks"),
    _F("AveCPUFreq", 10, "mean CPU frequency of the tasks, kHz"),
    _F("AveDiskRead", 14, "mean bytes read by the tasks"),
    _F("AveDiskWrite", 14, "mean bytes written by the tasks"),
    _F("AvePages", 10, "mean page faults of the tasks"),
    _F("AveRSS", 10, "mean resident memory of the tasks"),
    _F("AveVMSize", 10, "mean virtual memory of the tasks"),
    _F("BlockID", 16, "name of the block"),
    _F("Cluster", 10, "name of the cluster"),
    _F("Comment", 14, "comment of the job"),
    _F("Constraints", 19, "requested features"),
    _F("ConsumedEnergy", 14, "energy in Slurm's own accounting, J"),
    _F("ConsumedEnergyRaw", 17, "energy in Slurm's own accounting as a plain number, J", WIDEN),
    _F("Container", 19, "path of the OCI container bundle"),
    _F("CPUTime", 10, "elapsed time times CPUs", WIDEN),
    _F("CPUTimeRAW", 10, "elapsed time times CPUs in seconds", WIDEN),
    _F("DBIndex", -10, "number of the job's row in Slurm's database", WIDEN, before=(24, 11)),
    _F("DBIndex", -21, "number of the job's row in Slurm's database", WIDEN, since=(24, 11)),
    _F("DerivedExitCode", 15, "maximum exit code of the steps"),
    _F("Elapsed", 10, "elapsed time", WIDEN),
    _F("ElapsedRaw", 10, "elapsed time in seconds", WIDEN),
    _F("Eligible", 19, "time at which the job became eligible", DATE),
    _F("End", 19, "end of the job or step", DATE),
    _F("Exclusive", 14, "kind of exclusive allocation", since=(26, 5)),
    _F("ExitCode", 8, "exit code and signal"),
    _F("Extra", 14, "text given by --extra", since=(23, 2)),
    _F("FailedNode", 8, "node whose failure ended the job", since=(23, 2)),
    _F("Flags", 19, "scheduler that started the job, and other flags"),
    _F("GID", 6, "owner's numeric group id", WIDEN),
    _F("Group", 9, "owner's group"),
    _F("JobID", -12, "job id with array task or component, and step"),
    _F("JobIDRaw", -12, "numeric job id, and step"),
    _F("JobName", 10, "name of the job or step"),
    _F("Layout", 9, "distribution of the step's tasks over nodes"),
    _F("Licenses", 10, "licenses of the job", since=(23, 2)),
    _F("MaxDiskRead", 12, "maximum of bytes read by a task"),
    _F("MaxDiskReadNode", 15, "node of the task with MaxDiskRead"),
    _F("MaxDiskReadTask", 15, "task with MaxDiskRead", WIDEN),
    _F("MaxDiskWrite", 12, "maximum of bytes written by a task"),
    _F("MaxDiskWriteNode", 16, "node of the task with MaxDiskWrite"),
    _F("MaxDiskWriteTask", 16, "task with MaxDiskWrite", WIDEN),
    _F("MaxPages", 8, "maximum of a task's page faults"),
    _F("MaxPagesNode", 12, "node of the task with MaxPages"),
    _F("MaxPagesTask", 14, "task with MaxPages", WIDEN),
    _F("MaxRSS", 10, "maximum resident memory of a task"),
    _F("MaxRSSNode", 10, "node of the task with MaxRSS"),
    _F("MaxRSSTask", 10, "task with MaxRSS", WIDEN),
    _F("MaxVMSize", 10, "maximum virtual memory of a task"),
    _F("MaxVMSizeNode", 14, "node of the task with MaxVMSize"),
    _F("MaxVMSizeTask", 14, "task with MaxVMSize", WIDEN),
    _F("McsLabel", 12, "label of multi-category security"),
    _F("MinCPU", 10, "minimum CPU time of a task"),
    _F("MinCPUNode", 10, "node of the task with MinCPU"),
    _F("MinCPUTask", 10, "task with MinCPU", WIDEN),
    _F("NCPUS", 10, "allocated CPUs", WIDEN),
    _F("NNodes", 8, "allocated nodes, or requested ones while pending", WIDEN),
    _F("NodeList", 15, "nodes of the job or step"),
    _F("NTasks", 8, "number of tasks", WIDEN),
    _F("OriginalSLUID", 14, "unique id of the job's first run", WIDEN, since=(26, 5)),
    _F("OverSubscribe", 14, "whether the job shares its resources", since=(26, 5)),
    _F("Partition", 10, "partition"),
    _F("Planned", 10, "time between eligibility and start", WIDEN, since=(23, 2)),
    _F("PlannedCPU", 10, "Planned times CPUs", WIDEN, since=(23, 2)),
    _F("PlannedCPURAW", 13, "Planned times CPUs in seconds", WIDEN, since=(23, 2)),
    _F("Priority", 10, "priority", WIDEN),
    _F("QOS", 10, "quality of service"),
    _F("QOSRAW", 6, "number of the quality of service", WIDEN),
    _F("QOSREQ", 10, "requested quality of service", since=(24, 11)),
    _F("Reason", 22, "last reason for waiting other than priority and resources"),
    _F("ReqCPUFreq", 10, "maximum requested CPU frequency, kHz"),
    _F("ReqCPUFreqGov", 13, "requested frequency governor"),
    _F("ReqCPUFreqMax", 13, "maximum requested CPU frequency, kHz"),
    _F("ReqCPUFreqMin", 13, "minimum requested CPU frequency, kHz"),
    _F("ReqCPUS", 8, "requested CPUs", WIDEN),
    _F("ReqMem", 10, "requested memory"),
    _F("ReqNodes", 8, "requested nodes"),
    _F("ReqTRES", 10, "requested trackable resources"),
    _F("Reservation", 20, "reservation"),
    _F("ReservationId", 8, "number of the reservation", WIDEN),
    _F("ReqReservation", 20, "requested reservations", since=(25, 5)),
    _F("Restarts", 8, "number of requeues", WIDEN, since=(24, 11)),
    _F("SegmentSize", 11, "requested size of node segments", WIDEN, since=(25, 5)),
    _F("SLUID", 14, "Slurm's unique id of the job", WIDEN, since=(24, 11)),
    _F("Reserved", 10, "time between eligibility and start", WIDEN, before=(23, 2)),
    _F("ResvCPU", 10, "Reserved times CPUs", WIDEN, before=(23, 2)),
    _F("ResvCPURAW", 10, "Reserved times CPUs in seconds", WIDEN, before=(23, 2)),
    _F("Start", 19, "start of the job or step", DATE),
    _F("State", 10, "state of the job or step"),
    _F("StdErr", 20, "file of standard error", since=(24, 5)),
    _F("StdIn", 20, "file of standard input", since=(24, 5)),
    _F("StdOut", 20, "file of standard output", since=(24, 5)),
    _F("Submit", 19, "time of submission; start of a step", DATE),
    _F("SubmitLine", 20, "command line of the submission"),
    _F("Suspended", 10, "suspended time", WIDEN),
    _F("SystemComment", 15, "comment of Slurm"),
    _F("SystemCPU", 10, "CPU time in the kernel"),
    _F("Timelimit", 10, "time limit"),
    _F("TimelimitRaw", 10, "time limit in minutes"),
    _F("TotalCPU", 10, "CPU time"),
    _F("TRESUsageInAve", 14, "mean over tasks of resources read"),
    _F("TRESUsageInMax", 14, "maximum over tasks of resources read"),
    _F("TRESUsageInMaxNode", 18, "nodes of the tasks with TRESUsageInMax"),
    _F("TRESUsageInMaxTask", 18, "tasks with TRESUsageInMax"),
    _F("TRESUsageInMin", 14, "minimum over tasks of resources read"),
    _F("TRESUsageInMinNode", 18, "nodes of the tasks with TRESUsageInMin"),
    _F("TRESUsageInMinTask", 18, "tasks with TRESUsageInMin"),
    _F("TRESUsageInTot", 14, "sum over tasks of resources read"),
    _F("TRESUsageOutAve", 15, "mean over tasks of resources written"),
    _F("TRESUsageOutMax", 15, "maximum over tasks of resources written"),
    _F("TRESUsageOutMaxNode", 19, "nodes of the tasks with TRESUsageOutMax"),
    _F("TRESUsageOutMaxTask", 19, "tasks with TRESUsageOutMax"),
    _F("TRESUsageOutMin", 15, "minimum over tasks of resources written"),
    _F("TRESUsageOutMinNode", 19, "nodes of the tasks with TRESUsageOutMin"),
    _F("TRESUsageOutMinTask", 19, "tasks with TRESUsageOutMin"),
    _F("TRESUsageOutTot", 15, "sum over tasks of resources written"),
    _F("UID", 6, "owner's numeric id", WIDEN),
    _F("User", 9, "owner"),
    _F("UserCPU", 10, "CPU time outside the kernel"),
    _F("WCKey", 10, "workload characterisation key"),
    _F("WCKeyID", 10, "number of the workload characterisation key", WIDEN),
    _F("WorkDir", 20, "working directory"),
)

NEWEST: Final = Release(26, 5, 0)
"""The newest release that this table describes."""


def date_overflow(release: Release) -> Overflow:
    """Return how sacct of a release prints a time that is too long for its column.

    Returns:
        `date`: the end of the time is dropped, even with --parsable. `cut_date`: the end is
        dropped, in tables only. `hash`: the column is filled with `#`, in tables only.
    """
    return "date" if release < (23, 2, 1) else "cut_date" if release < (23, 11) else "hash"


def fields_of(release: Release) -> tuple[SacctField, ...]:
    """Return the fields that sacct has in one Slurm release, in the order in which sacct lists them."""
    return tuple(field for field in SACCT_FIELDS if field.exists_in(release))


def explain_missing(name: str, release: Release, flag: str) -> UsageError | None:
    """Return the error for a field that exists only in other releases of Slurm.

    The result is None if no other release has the field.

    Args:
        name: name of the field.
        release: the present release of Slurm.
        flag: command-line option that contains the field, for the message.
    """
    for field in SACCT_FIELDS:
        if field.name.lower() == name.lower() and not field.exists_in(release):
            end = (
                "" if field.before is None else f" and was removed in {field.before[0]}.{field.before[1]:02d}"
            )
            why = f"Slurm has it from {field.since[0]}.{field.since[1]:02d} on{end}; this is {release}"
            return UsageError(f"{flag}: field '{shown(field.name)}'", why)
    return None
