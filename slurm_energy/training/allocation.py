"""Ranks and nodes of a training program.

The module reads from the environment which rank (process) this is, how many ranks there are, and
where they connect. It also checks the allocation of the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError, UsageError

RESTARTS_KEY: Final = "SENERGY_TRAINING_RESTARTS"
"""Environment variable with the number of restarts after a lost node; `training.restart` sets it."""
_FIRST_PORT: Final = 20000
_PORTS: Final = 10000
_FIRST_HOST = re.compile(r"(?P<prefix>[^\[,]+)(?:\[(?P<number>\d+)[^\]]*\](?P<suffix>[^\[,]*))?")


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Number of a rank, and the address under which all ranks of the program connect.

    Attributes:
        rank: number of this rank.
        ranks: number of ranks.
        address: host name or address of rank 0.
        port: TCP port on which rank 0 listens.
        is_restart: whether the job has lost a node before.
    """

    rank: int
    ranks: int
    address: str
    port: int
    is_restart: bool = False


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Facts about a rank that all ranks compare.

    Attributes:
        node: host name.
        gpus: GPUs that the rank sees.
        uses_gpu: whether the model of the rank is on a GPU.
        backend: name of a PyTorch backend that this rank needs but that is missing; empty if none is missing.
    """

    node: str
    gpus: int
    uses_gpu: bool
    backend: str = ""


def placement(environment: Mapping[str, str]) -> RankPlacement:
    """Return rank, number of ranks and master address of this process, for distributed training.

    The values are read from the variables of srun, or of torchrun.

    Raises:
        UsageError: neither srun nor torchrun started the program.
    """
    restarted = environment.get(RESTARTS_KEY, "0") not in ("", "0")
    for rank, ranks in (("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE")):
        if {rank, ranks} <= environment.keys():
            own, total = int(environment[rank]), int(environment[ranks])
            break
    else:
        raise UsageError("the ranks of this program are unknown", "it is no Slurm step", "start it with srun")
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    address = environment.get("MASTER_ADDR") or first_host(nodes) or "127.0.0.1"
    port = environment.get("MASTER_PORT") or str(_port(environment))
    return RankPlacement(own, total, address, int(port), restarted)


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm host list: `gpu003` for `gpu[003-009,12],x`; empty without hosts."""
    match = _FIRST_HOST.match(nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def check(facts: Sequence[RankFacts], global_batch: int, *, is_restart: bool = False) -> None:
    """Refuse an allocation if a batch cannot be divided among its ranks.

    Args:
        facts: facts of all ranks.
        global_batch: samples of a training step on all ranks together.
        is_restart: whether the job has lost a node before. If so, it may continue on one node.

    Raises:
        UsageError: there is only one node, some rank has no GPU for itself, or there are more ranks than
            samples.
        UnavailableError: PyTorch lacks a backend.
    """
    ranks_on = Counter(fact.node for fact in facts)
    if len(ranks_on) < 2 and not is_restart:
        node = facts[0].node
        raise UsageError(
            f"all ranks are on one node ({node})", "there is nothing to balance", "request --nodes=2 or more"
        )
    for fact in facts:
        if fact.backend:
            todo = "install a PyTorch that has it on every node"
            raise UnavailableError(f"backend {fact.backend}", f"PyTorch on {fact.node} lacks it", todo)
    if any(fact.uses_gpu for fact in facts):
        _check_gpus(facts, ranks_on)
    if global_batch < len(facts):
        raise UsageError(
            f"global_batch {global_batch}",
            f"is less than the {len(facts)} ranks",
            "use at least one per rank",
        )


def _check_gpus(facts: Sequence[RankFacts], ranks_on: Mapping[str, int]) -> None:
    gpus_on = {node: max(fact.gpus for fact in facts if fact.node == node) for node in ranks_on}
    if any(not fact.uses_gpu for fact in facts) or any(gpus_on[node] != ranks_on[node] for node in ranks_on):
        counts = ", ".join(f"{node}: {ranks_on[node]} ranks, {gpus} GPUs" for node, gpus in gpus_on.items())
        raise UsageError(
            f"unequal numbers of ranks and GPUs ({counts})",
            "each rank needs one GPU of its own",
            "request as many tasks as GPUs on each node, for unlike nodes as a heterogeneous job",
        )


def _port(environment: Mapping[str, str]) -> int:
    job, step = (int(environment.get(key, "0")) for key in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return _FIRST_PORT + (job * 31 + step) % _PORTS
