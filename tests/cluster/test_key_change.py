"""A node whose munge key differs from the controller's delivers its records once the keys are equal again."""

from __future__ import annotations

import shutil

import pytest
from own_controller import controller, munged, place, running_munged, wait_for  # noqa: F401
from test_version_skew import Agent

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed")
RELEASE = ("0.2.0", "1", "")


def test_records_wait_for_the_right_key(controller, munged, place):  # noqa: F811
    controller.start()
    agent = Agent(place / "keyed", controller, RELEASE)
    socket = place / "socket"  # of the munged of the node
    socket.symlink_to(place / "foreign/socket")
    agent.file.write_text(agent.file.read_text().replace(str(munged), str(socket)))
    try:
        with running_munged(place / "foreign"):
            agent.start()
            for job_id in (1, 2):
                agent.run_job(job_id)
            wait_for(lambda: "stay in the spool" in agent.log.read_text())
            wait_for(lambda: agent.counts() == {"spooled": 2, "deferred": 0, "rejected": 0})
        socket.unlink()
        socket.symlink_to(place / "right/socket")
        with running_munged(place / "right", **{"key-file": str(munged.with_name("key"))}):
            wait_for(lambda: agent.counts() == {"spooled": 0, "deferred": 0, "rejected": 0})
        records = controller.client().get("/v1/records")["records"]
        assert sorted(record["job_id"] for record in records) == [1, 2]
    finally:
        agent.kill()
        socket.unlink()
        shutil.rmtree(agent.folder)
