"""Options of sacct in the releases from 22.05 to 26.05.

The module defines how `senergy acct` treats each option.

Source: `long_options` in src/sacct/options.c of each release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from slurm_energy.errors import UsageError
from slurm_energy.slurm.release import Release

Treatment = Literal["rows", "output", "refused"]
ROWS: Final = "rows"
"""The option decides which rows appear; it is passed on to sacct unchanged."""
OUTPUT: Final = "output"
"""The option decides how rows are printed."""
REFUSED: Final = "refused"
"""The option has no meaning for energy."""


@dataclass(frozen=True, slots=True)
class SacctOption:
    """An option of sacct.

    Attributes:
        names: all spellings, short ones first.
        value: placeholder of the value; an empty value means that the option takes no value. A value in
            brackets is optional.
        doc: meaning; for a refused option the reason.
        treatment: way in which `senergy acct` handles the option.
        since: first release of Slurm with the option, as (major, minor).
    """

    names: tuple[str, ...]
    value: str
    doc: str
    treatment: Treatment = ROWS
    since: tuple[int, int] = (22, 5)

    @property
    def long_name(self) -> str:
        """The first long spelling of the option. All releases that have the option accept this spelling."""
        return next(name for name in self.names if name.startswith("--"))

    @property
    def key(self) -> str:
        """The name under which the parsed value is stored."""
        return self.long_name.removeprefix("--").replace("-", "_")

    @property
    def optional(self) -> bool:
        """Whether the value of the option may be left out."""
        return self.value.startswith("[")

    def check(self, release: Release) -> None:
        """Refuse the option if the installed release of Slurm lacks it.

        Raises:
            UsageError: the release lacks the option.
        """
        if release < self.since:
            needed = f"{self.since[0]}.{self.since[1]:02d}"
            raise UsageError(self.long_name, f"Slurm has this option from {needed} on; this is {release}")


_O = SacctOption

SACCT_OPTIONS: Final = (
    _O(("-a", "--allusers"), "", "jobs of all users"),
    _O(("-A", "--accounts"), "ACCOUNT,...", "jobs in these accounts"),
    _O(("-X", "--allocations"), "", "jobs only, no steps"),
    _O(("--array",), "", "array tasks on separate lines", since=(23, 2)),
    _O(("-x", "--associations"), "ID,...", "jobs of these association ids"),
    _O(("-M", "--clusters", "--cluster"), "CLUSTER,...", "jobs of these clusters, or of all"),
    _O(("-L", "--allclusters"), "", "jobs of all clusters in Slurm's database"),
    _O(("-C", "--constraints"), "FEATURE,...", "jobs that requested all of these features"),
    _O(("-D", "--duplicates"), "", "all runs of a requeued job or reused id instead of the last run only"),
    _O(("-E", "--endtime"), "TIME", "jobs before this time"),
    _O(("--expand-patterns",), "", "expand patterns such as %%j in StdIn, StdOut and StdErr", since=(24, 5)),
    _O(("--federation",), "", "jobs of the whole federation"),
    _O(("-F", "--flags"), "FLAG,...", "jobs started by SchedSubmit, SchedMain or SchedBackfill"),
    _O(("-g", "--gid", "--group"), "GROUP,...", "jobs of these groups or gids"),
    _O(("-j", "--jobs"), "JOB[.STEP],...", "12, 12.batch, 12_3, 12_[1-4], 14+0; any time unless -S is given"),
    _O(("--local",), "", "jobs of this cluster only, overrides --federation"),
    _O(("--name",), "NAME,...", "jobs of these names"),
    _O(("-I", "--ncpus"), "MIN[-MAX]", "jobs with this number of CPUs"),
    _O(("-i", "--nnodes"), "MIN[-MAX]", "jobs with this number of nodes"),
    _O(("-N", "--nodelist"), "NODES", "jobs that ran on any of these nodes: n[1-4],n7"),
    _O(("-r", "--partition"), "PARTITION,...", "jobs in these partitions"),
    _O(("-q", "--qos"), "QOS,...", "jobs with these qualities of service"),
    _O(("-R", "--reason"), "REASON,...", "jobs that waited for these reasons"),
    _O(("-S", "--starttime"), "TIME", "jobs after this time (default: 00:00 today; with -s: now)"),
    _O(("-s", "--state"), "STATE,...", "jobs in these states: completed or CD, failed or F, ..."),
    _O(("-K", "--timelimit-max"), "TIME", "with -k: maximum time limit"),
    _O(("-k", "--timelimit-min"), "TIME", "jobs with this time limit, or with -K: minimum time limit"),
    _O(("-T", "--truncate"), "", "cut start and end to the time window"),
    _O(("-u", "--user", "--uid"), "USER,...", "jobs of these users or uids (default: your own; root: all)"),
    _O(("--use-local-uid",), "", "UIDs from this host's user names instead of Slurm's database"),
    _O(("-W", "--wckeys"), "WCKEY,...", "jobs with these workload characterisation keys"),
    _O(("--whole-hetjob",), "[yes|no]", "all components of a heterogeneous job of which -j names one"),
    _O(("-b", "--brief"), "", "columns JobID, State, ExitCode and ConsumedEnergy", OUTPUT),
    _O(("--delimiter",), "TEXT", "with -p or -P: delimiter instead of |", OUTPUT),
    _O(("-o", "--format", "--fields"), "FIELD[%WIDTH],...", "columns", OUTPUT),
    _O(("-h", "--help"), "", "help", OUTPUT),
    _O(("-e", "--helpformat", "--help-fields"), "", "list the fields", OUTPUT),
    _O(("--json",), "[PARSER]", "JSON", OUTPUT),
    _O(("-l", "--long"), "", "more columns", OUTPUT),
    _O(("--noconvert",), "", "no prefixes of units", OUTPUT),
    _O(("-n", "--noheader"), "", "no header", OUTPUT),
    _O(("-p", "--parsable"), "", "values separated by |, with a trailing |", OUTPUT),
    _O(("-P", "--parsable2"), "", "values separated by |", OUTPUT),
    _O(("--units",), "[KMGTP]", "one prefix for all figures", OUTPUT),
    _O(("-U", "--usage"), "", "short usage", OUTPUT),
    _O(("-v", "--verbose"), "", "print what is queried", OUTPUT),
    _O(("-V", "--version"), "", "version", OUTPUT),
    _O(("--yaml",), "[PARSER]", "YAML", OUTPUT),
    _O(("--autocomplete",), "NAME", "it completes words for a shell: sacct has it", REFUSED, since=(23, 2)),
    _O(("-B", "--batch-script"), "", "it prints scripts, not energy: use sacct -B -j JOB", REFUSED),
    _O(
        ("-c", "--completion"),
        "",
        "Slurm's completion log names neither runs nor steps, so no energy can be joined: use sacct -c",
        REFUSED,
    ),
    _O(("--env-vars",), "", "it prints environments, not energy: use sacct --env-vars -j JOB", REFUSED),
    _O(
        ("-f", "--file"),
        "FILE",
        "Slurm's completion log names neither runs nor steps, so no energy can be joined: use sacct -f",
        REFUSED,
    ),
    _O(("--helpreason",), "", "it lists words of Slurm: use sacct --helpreason", REFUSED, since=(24, 5)),
    _O(("--helpstate",), "", "it lists words of Slurm: use sacct --helpstate", REFUSED, since=(24, 5)),
)


def options_with(treatment: Treatment) -> tuple[SacctOption, ...]:
    """Return the options of sacct that `senergy acct` handles in a given way (treatment)."""
    return tuple(option for option in SACCT_OPTIONS if option.treatment == treatment)
