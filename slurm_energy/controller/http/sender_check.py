"""Check that the sender of a delivery may deliver its items.

The check uses the addresses of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.accounting.records.record_store import Refusal, RefusalOutcome
from slurm_energy.controller.http.node_hosts import OFF, STRICT, NodeHosts, Sender, Verdict
from slurm_energy.quantities import shown


@dataclass(frozen=True, slots=True)
class ItemSource:
    """Origin of an item that an agent delivers to the controller.

    An item is the energy record of a job, or the energy of a node in a time interval (period).

    Attributes:
        index: position of the item in the request.
        item_id: id of the record or period.
        node: node that the item describes.
    """

    index: int
    item_id: str
    node: str


async def refuse_foreign(
    hosts: NodeHosts | None, mode: str, sources: Iterable[ItemSource], sender: Sender, subject: str
) -> list[Refusal]:
    """Return a refusal for each item of a delivery that the sender may not deliver.

    A sender may deliver the items of a node if the sender runs on a host of this node.

    Args:
        hosts: addresses of nodes; None means that any sender may deliver for any node.
        mode: value of `controller.record_hosts`.
        sources: origins of the items.
        sender: addresses of the sender.
        subject: noun for an item, for messages, such as `energy record`.
    """
    if hosts is None or mode == OFF:
        return []
    items: Sequence[ItemSource] = [*sources]
    verdicts = await hosts.verdicts({item.node for item in items}, sender, mode)
    refusals = []
    for item in items:
        verdict = verdicts[item.node]
        if verdict is Verdict.REFUSED:
            refusals.append(Refusal(item.index, item.item_id, f"{subject}: {_foreign(item, sender, mode)}"))
        elif verdict is Verdict.ABSENT or (verdict is Verdict.UNKNOWN and mode == STRICT):
            what = "has no node" if verdict is Verdict.ABSENT else "does not tell the addresses of node"
            why = f"{subject}: Slurm {what} {shown(item.node)} (controller.record_hosts)"
            refusals.append(Refusal(item.index, item.item_id, why, RefusalOutcome.RETRY))
    return refusals


def _foreign(item: ItemSource, sender: Sender, mode: str) -> str:
    why = f"{sender.peer} is not an address of node {shown(item.node)}"
    if sender.origin is not None and mode != STRICT:
        why += f", nor is {sender.origin}, which munge names"
    todo = "correct NodeAddr in slurm.conf, or set controller.record_hosts, then run: senergy spool resend"
    return f"{why}: {todo}"
