"""Options of `senergy lab up`.

The options make nodes unequal in speed and configure the network between nodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_energy_lab.cluster.nodes_file import NodeSpec


def configure(up: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `senergy lab up`."""
    up.add_argument(
        "--speeds",
        type=_speeds,
        metavar="S,S,...",
        help="factors on --cpu-share, one per node; without --nodes, as many equal nodes",
    )
    up.add_argument(
        "--latency",
        metavar="TIME",
        help="emulate a network between the nodes' tasks, e.g. 200us or 5ms one way",
    )
    up.add_argument(
        "--bandwidth", metavar="RATE", help="bandwidth of each node's link in it, e.g. 100mbit or 1gbit"
    )


def chosen(args: argparse.Namespace, nodes: Sequence[NodeSpec] | None) -> dict[str, Any]:
    """Return the fields of a `LabSpec` that the options determine.

    Args:
        args: parsed arguments.
        nodes: nodes that the nodes file describes; None without a nodes file.

    Raises:
        UsageError: the value of an option is invalid.
    """
    from slurm_energy_lab.cluster import nodes_file
    from slurm_energy_lab.interconnect.links import LinkSpec, parse_bandwidth, parse_latency

    fields: dict[str, Any] = {}
    if args.speeds:
        fields["nodes"] = nodes_file.with_speeds(nodes, args.speeds)
    if args.latency is not None or args.bandwidth is not None:
        bits_per_s = parse_bandwidth(args.bandwidth) if args.bandwidth is not None else None
        fields["links"] = LinkSpec(parse_latency(args.latency or "0s"), bits_per_s)
    return fields


def _speeds(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 1,0.6,0.3") from None
