"""Check of the sender's host: only the host of a node may deliver the node's records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from slurm_energy.controller.http import node_hosts
from slurm_energy.controller.http.node_hosts import CHECK, OFF, STRICT, NodeHosts, Sender, Verdict
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.node_addresses import parse_node_addresses

SINFO = "n1|n1|n1\nn2|n2|10.0.0.2\nn3|localhost|localhost\nn4|localhost|localhost\nn5|n5|gone\nn1|n1|n1\n"
NAMES = {
    "n1": ["10.0.0.1", "fd00::1"],
    "n2": [],
    "10.0.0.2": ["10.0.0.2"],
    "localhost": ["127.0.0.1", "::1"],
    "head": ["127.0.1.1"],
}
ALLOWED, REFUSED = Verdict.ALLOWED, Verdict.REFUSED
ABSENT, UNKNOWN = Verdict.ABSENT, Verdict.UNKNOWN


class Cluster:
    """Stand-in for Slurm and a name service, whose answers are constants."""

    def __init__(self, sinfo: str = SINFO) -> None:
        self.sinfo: str | None = sinfo
        self.commands = 0
        self.hosts = NodeHosts(
            self.run,
            RepeatedFailureLog(logging.getLogger("test"), ignore_numbers=True),
            lambda n: NAMES.get(n, []),
        )

    def run(self, argv: Sequence[str]) -> str:
        assert argv[0] == "sinfo"
        self.commands += 1
        if self.sinfo is None:
            raise UnavailableError("sinfo", "slurmctld is away")
        return self.sinfo

    def verdict(self, node: str, peer: str | None, mode: str = CHECK, **more: str) -> Verdict:
        return asyncio.run(self.hosts.verdicts([node], Sender(peer, **more), mode))[node]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    made = Cluster()
    monkeypatch.setattr(node_hosts, "WAIT_S", 60.0)
    yield made
    made.hosts.close()


@pytest.mark.parametrize(
    ("node", "peer", "verdict"),
    [
        ("n1", "10.0.0.1", ALLOWED),
        ("n1", "fd00::1", ALLOWED),
        ("n1", "fd00::1%eth0", ALLOWED),
        ("n1", "::ffff:10.0.0.1", ALLOWED),
        ("n1", "10.0.0.2", REFUSED),
        ("n1", "127.0.0.1", REFUSED),
        ("n2", "10.0.0.2", ALLOWED),
        ("n2", "10.0.0.1", REFUSED),
        ("n3", "127.0.0.1", ALLOWED),  # several nodes on one host, as in the lab
        ("n4", "127.0.0.1", ALLOWED),
        ("n4", "10.0.0.1", REFUSED),
        ("n5", "10.0.0.1", UNKNOWN),
        ("unheard-of", "10.0.0.1", ABSENT),
        ("n1", None, UNKNOWN),
        ("n1", "not an address", UNKNOWN),
    ],
)
def test_the_peer_address_decides(cluster: Cluster, node: str, peer: str | None, verdict: Verdict) -> None:
    assert cluster.verdict(node, peer) is verdict
    assert cluster.verdict(node, peer, STRICT) is verdict
    assert cluster.verdict(node, peer, OFF) is ALLOWED


def test_behind_address_translation_munge_names_the_origin(cluster: Cluster) -> None:
    assert cluster.verdict("n1", "192.0.2.9", origin="10.0.0.1") is ALLOWED
    assert cluster.verdict("n1", "192.0.2.9", origin="10.0.0.2") is REFUSED
    assert cluster.verdict("n1", "192.0.2.9", STRICT, origin="10.0.0.1") is REFUSED


def test_a_loopback_origin_proves_nothing(cluster: Cluster) -> None:
    """A request that comes from a loopback address does not prove from which node it comes.

    Debian's /etc/hosts maps the name of every host to 127.0.1.1.
    """
    assert cluster.verdict("n3", "10.0.0.1", origin="127.0.0.1") is REFUSED
    assert cluster.verdict("n1", "10.0.0.1", origin="127.0.1.1") is ALLOWED


def test_a_node_on_the_controllers_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Cluster("head|head|head\n")
    monkeypatch.setattr(node_hosts, "WAIT_S", 60.0)
    assert made.verdict("head", "127.0.0.1") is ALLOWED
    assert made.verdict("head", "10.0.0.9", own="10.0.0.9") is ALLOWED
    assert made.verdict("head", "10.0.0.8", own="10.0.0.9") is REFUSED
    made.hosts.close()


def test_slurm_is_queried_once_for_many_deliveries(cluster: Cluster) -> None:
    for _ in range(50):
        assert cluster.verdict("n1", "10.0.0.1") is ALLOWED
        assert cluster.verdict("n2", "10.0.0.1") is REFUSED
    assert cluster.commands == 1


def test_without_slurm_nothing_is_refused(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.sinfo = None
    for _ in range(10):
        assert cluster.verdict("n1", "10.0.0.2") is UNKNOWN
    assert cluster.commands == 1
    assert len(caplog.records) == 1


def test_a_node_that_moved_is_looked_up_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.verdict("n2", "10.0.0.7") is REFUSED
    monkeypatch.setitem(NAMES, "10.0.0.7", ["10.0.0.7"])
    monkeypatch.setattr(node_hosts, "MIN_AGE_S", -1.0)
    cluster.sinfo = "n2|n2|10.0.0.7\n"
    assert cluster.verdict("n2", "10.0.0.7") is ALLOWED
    assert cluster.verdict("n1", "10.0.0.7") is ABSENT
    cluster.sinfo = ""  # as for a user who may not see any nodes in Slurm
    assert cluster.verdict("n1", "10.0.0.7") is UNKNOWN


def test_the_output_of_sinfo_is_parsed() -> None:
    assert parse_node_addresses("n1|h1|a1\n\nnonsense\n|x|y\nn1|h1|a2\nn2||\n") == {
        "n1": frozenset({"h1", "a1", "a2"}),
        "n2": frozenset(),
    }
