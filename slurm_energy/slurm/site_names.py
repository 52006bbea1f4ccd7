"""Names of the Slurm accounts and partitions that exist in Slurm."""

from __future__ import annotations

from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.fair_share import read_shares

_NO_ACCOUNTING: Final = "Only 'accounting_storage/slurmdbd' is supported"


def read_accounts(run: Runner, cluster: str = "") -> frozenset[str]:
    """Return the names of the Slurm accounts of a cluster; empty if Slurm runs without slurmdbd.

    Args:
        run: function that executes a command and returns the output of the command.
        cluster: ClusterName; an empty value means the accounts of all clusters.

    Raises:
        UnavailableError: slurmdbd does not answer.
    """
    try:
        return frozenset(read_shares(run, cluster).accounts)
    except UnavailableError as error:
        if _NO_ACCOUNTING in str(error):
            return frozenset()
        raise


def read_partitions(run: Runner) -> frozenset[str]:
    """Return the names of all partitions, including hidden ones.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    return frozenset(
        line.strip() for line in run(["sinfo", "-h", "-a", "-o", "%R"]).splitlines() if line.strip()
    )
