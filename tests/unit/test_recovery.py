"""Recovery of a node that lost its state directory while a job ran.

The agent continues to work, and the records of later jobs are complete.
"""

from __future__ import annotations

import shutil

from test_job_manager import Node, env, make, node  # noqa: F401


def test_a_node_without_its_state_directory_goes_on(node: Node) -> None:  # noqa: F811
    node.manager.begin(env(1, policy="cap", cap="300"))
    node.use(2)
    node.die()
    shutil.rmtree(node.folder / "state")
    node.manager = node.start()
    assert node.manager.end(env(1)) == {"known": False}
    assert node.records() == []  # its energy so far is lost, and not invented
    node.manager.begin(env(2))
    node.use(3)
    node.manager.end(env(2))
    (record,) = node.records()
    assert (record.job_id, record.energy_joules is not None) == (2, True)
