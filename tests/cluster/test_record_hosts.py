"""Each host may deliver only the records of its own nodes.

A real Slurm states the nodes of each host. The deliveries are authenticated by a real munge.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from own_controller import Controller, entry, reserved_port, running_munged, wait_for
from small_cluster import SmallCluster, marks

from slurm_energy.slurm import munge
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.node_addresses import read_node_addresses

REPOSITORY = Path(__file__).resolve().parents[2]
ELSEWHERE = "192.0.2.7"  # TEST-NET-1: an address of no host
NODES = ("n1", "n2", "n3", "retired")
FIRST_EARLIER_JOB = 100

pytestmark = marks()


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="hosts-") as directory:
        plugin, hook = REPOSITORY / "spank" / "energy.so", REPOSITORY / "prolog_epilog" / "senergy-hook"
        with SmallCluster(Path(directory), plugin, hook) as running:
            patch.setenv("SLURM_CONF", running.environment["SLURM_CONF"])
            names = (f"NodeAddr={ELSEWHERE}", "NodeHostname=elsewhere")
            moved = running.run("scontrol", "update", "NodeName=n3", *names)
            assert moved.returncode == 0, moved.stderr
            yield running


@pytest.fixture
def controller(cluster, tmp_path):
    with reserved_port() as port:
        made = Controller(tmp_path, cluster.directory / "munge.socket", port)
        yield made
        made.stop(signal.SIGKILL)


def of_node(node, job_id):
    made = entry(job_id)
    made["record"]["node"] = node
    return made


def wait_for_addresses(client):
    """Deliver records of other jobs until senergyctld knows the addresses of all nodes.

    For each delivery, senergyctld waits at most a second for sinfo and a second for the name service. This
    may be too short on a busy machine. A later answer is used for the next delivery. Node n3 is on another
    host, and its record is refused as soon as its address is known.
    """
    earlier = [of_node(node, FIRST_EARLIER_JOB + number) for number, node in enumerate(NODES)]

    def all_known():
        answer = client.post("/v1/records", {"items": earlier})
        is_unknown = any("does not tell the addresses" in refusal["error"] for refusal in answer["retry"])
        return not is_unknown and NODES.index("n3") in [refusal["index"] for refusal in answer["rejected"]]

    wait_for(all_known)


def test_slurm_names_the_addresses_of_all_nodes(cluster):
    known = read_node_addresses(CommandRunner())
    assert set(known) == {"n1", "n2", "n3"}
    assert "127.0.0.1" in known["n1"] and ELSEWHERE in known["n3"]


@pytest.mark.parametrize(
    ("mode", "rejected", "retried"), [("check", [2], [3]), ("strict", [2], [3]), ("off", [], [])]
)
def test_a_host_delivers_for_its_own_nodes(controller, mode, rejected, retried):
    """With a check of hosts, the controller accepts from a host only records of nodes on this host.

    In the test, several nodes share the host of the test. One node is on another host, and one is unknown to
    Slurm.
    """
    controller.configure(extra=f'record_hosts = "{mode}"\n')
    controller.start()
    client = controller.client()
    if mode != "off":
        wait_for_addresses(client)
    sent = [of_node(node, number) for number, node in enumerate(NODES)]
    answer = client.post("/v1/records", {"items": sent})
    assert [refusal["index"] for refusal in answer["rejected"]] == rejected
    assert [refusal["index"] for refusal in answer["retry"]] == retried
    records = client.get("/v1/records")["records"]
    found = [record["node"] for record in records if record["job_id"] < FIRST_EARLIER_JOB]
    assert found == [node for number, node in enumerate(NODES) if number not in rejected + retried]
    for refusal in answer["rejected"]:
        assert all(word in refusal["error"] for word in ("127.0.0.1", "n3", "senergy spool resend"))


def test_the_address_in_the_credential_counts():
    directory = Path(tempfile.mkdtemp(prefix="origin-"))
    directory.chmod(0o755)
    try:
        with running_munged(directory / "munge", origin=ELSEWHERE) as munge_socket:
            opened = munge.open_credential(munge.encode(b"x", munge_socket), munge_socket)
        assert (opened.payload, opened.origin) == (b"x", ELSEWHERE)
    finally:
        shutil.rmtree(directory)
