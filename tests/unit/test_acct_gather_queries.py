"""Test the responses of senergyd to Slurm's energy plugin, which queries energy counters.

Each step gets a counter of its own. The step `extern` gets the counter of the whole job. The query of slurmd
gets the counter of the node.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from shared_node import SharedNode
from shared_node import joules as joules_of

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.sockets.server import AgentServer

SLURMD, EXTERN, BATCH, STEP, OTHER_STEP = 100, 200, 201, 202, 203


@pytest.fixture
def node(tmp_path):
    node = SharedNode(tmp_path, ("cpu", "dram", "gpu[0]", "gpu[1]", "node"))
    title(node, SLURMD, "/usr/sbin/slurmd")
    return node


def title(node: SharedNode, pid: int, text: str) -> None:
    folder = node.tree.root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").write_bytes(text.encode() + b"\0")


def stepd(node: SharedNode, pid: int, job: int, step: str, cpu_s: float | None = None) -> None:
    """Add a slurmstepd process of a job step to a test node.

    If `cpu_s` is given, slurmstepd has a child process that has used this CPU time.
    """
    title(node, pid, f"slurmstepd: [{job}.{step}]")
    if cpu_s is None:
        return
    put_process(node, pid, [pid + 1000], 0.0)
    put_process(node, pid + 1000, [], cpu_s)


def put_process(node: SharedNode, pid: int, children: list[int], cpu_s: float) -> None:
    ticks = round(cpu_s * os.sysconf("SC_CLK_TCK"))
    node.tree.put(f"proc/{pid}/stat", f"{pid} (x y) S 1 1 1 0 -1 4 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {pid}")
    node.tree.put(f"proc/{pid}/task/{pid}/children", " ".join(map(str, children)))


def ask(node: SharedNode, pid: int) -> dict:
    return node.manager.acct_gather.answer(pid, node.clock.boottime())


def joules(node: SharedNode, pid: int) -> int:
    return ask(node, pid)["joules"]


def test_extern_has_the_whole_job_and_a_step_what_was_used_since_its_start(node):
    node.begin(1, None, exclusive=True)
    stepd(node, EXTERN, 1, "extern")
    stepd(node, STEP, 1, "0")
    node.manager.step("start", 1, "extern", pid=EXTERN)
    node.use(2.0, {"cpu": 100.0, "dram": 10.0, "other": 20.0})
    node.manager.step("start", 1, "0", pid=STEP)
    assert joules(node, STEP) == 0
    node.use(3.0, {"cpu": 200.0, "dram": 10.0, "other": 20.0})
    assert joules(node, STEP) == 3 * 230
    assert joules(node, EXTERN) == 2 * 130 + 3 * 230


def test_a_request_takes_a_sample_and_a_second_one_at_the_same_time_does_not(node):
    node.begin(1, None, exclusive=True)
    stepd(node, EXTERN, 1, "extern")
    ask(node, EXTERN)
    node.use(1.0, {"cpu": 100.0}, ticks=False)
    arrived = node.clock.boottime()
    assert joules(node, EXTERN) == 100
    node.use(1.0, {"cpu": 100.0}, ticks=False)
    assert node.manager.acct_gather.answer(EXTERN, arrived)["joules"] == 100
    assert joules(node, EXTERN) == 200


def test_the_last_request_of_a_step_gets_what_otherwise_waits(node):
    """The last energy query of a job step also returns energy that is usually charged later.

    On a shared node, the energy of some components is charged only every ten seconds. After the last task
    of a step, Slurm does not ask again. The response to this query must therefore include the energy that
    is not charged yet.
    """
    for job, pid in ((1, EXTERN), (2, OTHER_STEP)):
        node.begin(job, 4)
        stepd(node, pid, job, "extern")
        children = node.tree.root / "proc" / str(pid) / "task" / str(pid) / "children"
        children.parent.mkdir(parents=True)
        children.write_text("4712 ")
    node.use(12.0, {"cpu": 100.0, "other": 50.0}, {1: 2, 2: 2})
    node.use(3.0, {"cpu": 100.0, "other": 50.0}, {1: 2, 2: 2})
    assert joules(node, EXTERN) < 15 * 75
    (node.tree.root / "proc" / str(EXTERN) / "task" / str(EXTERN) / "children").write_text("")
    node.use(0.05, {}, ticks=False)
    assert joules(node, EXTERN) == 15 * 75


def test_jobs_that_share_a_node_have_their_own_shares(node):
    for job, pid in ((1, EXTERN), (2, OTHER_STEP)):
        node.begin(job, 4, gpus=str(job - 1))
        stepd(node, pid, job, "extern")
    watts = {"cpu": 400.0, "dram": 40.0, "gpu[0]": 300.0, "gpu[1]": 50.0}
    node.use(20.0, watts, {1: 3, 2: 1})
    shares = [joules(node, pid) for pid in (EXTERN, OTHER_STEP)]
    assert shares == [20 * (330 + 300), 20 * (110 + 50)]


def test_slurmd_gets_the_node_with_its_idle_energy(node):
    before = joules(node, SLURMD)
    node.use(10.0, {"cpu": 100.0, "dram": 20.0, "other": 30.0})
    answer = ask(node, SLURMD)
    assert answer["joules"] - before == 1500
    assert answer["watts"] == pytest.approx(150.0)


def test_a_restart_of_the_agent_keeps_the_counter(node):
    node.begin(1, None, exclusive=True)
    stepd(node, EXTERN, 1, "extern")
    stepd(node, STEP, 1, "0")
    node.manager.step("start", 1, "0", pid=STEP)
    node.use(2.0, {"cpu": 100.0})
    first = ask(node, STEP), ask(node, EXTERN)
    node.die()
    node.use(3.0, {"cpu": 100.0}, ticks=False)
    node.manager = node.start()
    later = ask(node, STEP), ask(node, EXTERN)
    assert [answer["epoch"] for answer in later] == [answer["epoch"] for answer in first]
    assert [answer["joules"] for answer in first] == [200, 200]
    assert [answer["joules"] for answer in later] == [500, 500]


@pytest.mark.parametrize(("announced", "killed"), [(True, False), (True, True), (False, False)])
def test_steps_share_energy_by_their_cpu_time_since_both_run(node, announced, killed):
    """Steps that run at the same time share energy in proportion to their CPU time.

    Only the CPU time since the start of the later step counts. A step that used much CPU time before has no
    advantage. The same holds after a restart of the agent.
    """
    node.begin(1, None, exclusive=True)
    stepd(node, STEP, 1, "0", cpu_s=0)
    node.manager.step("start", 1, "0", pid=STEP)
    stepd(node, STEP, 1, "0", cpu_s=90.0)
    node.use(2.0, {"cpu": 100.0})
    assert joules(node, STEP) == 200
    stepd(node, OTHER_STEP, 1, "1", cpu_s=0)
    if announced:
        node.manager.step("start", 1, "1", pid=OTHER_STEP)
    else:
        assert joules(node, OTHER_STEP) == 0
    stepd(node, STEP, 1, "0", cpu_s=91.0)
    stepd(node, OTHER_STEP, 1, "1", cpu_s=3.0)
    if killed:
        node.die()
    node.use(4.0, {"cpu": 100.0}, ticks=False)
    if killed:
        node.manager = node.start()
    assert [joules(node, pid) for pid in (STEP, OTHER_STEP)] == [300, 300]


def test_a_step_that_was_not_announced_counts_from_its_first_request(node):
    node.begin(1, None, exclusive=True)
    node.use(2.0, {"cpu": 100.0})
    stepd(node, BATCH, 1, "batch", cpu_s=0)
    first = ask(node, BATCH)
    node.use(1.0, {"cpu": 100.0})
    later = ask(node, BATCH)
    assert (first["joules"], later["joules"], later["epoch"]) == (0, 100, first["epoch"])
    node.manager.step("end", 1, "batch")
    put_process(node, BATCH, [], 0.0)
    assert ask(node, BATCH) == {"known": False}  # a late request does not begin it again


def test_no_energy_counts_for_two_steps(node):
    """Slurm never gets the same energy for two steps of a job.

    The batch step gets the energy of the time in which no srun step runs. Steps that run at the same time
    share the energy in proportion to their CPU time.
    """
    node.begin(1, None, exclusive=True)
    stepd(node, EXTERN, 1, "extern", cpu_s=0)
    node.manager.step("start", 1, "extern", pid=EXTERN)
    stepd(node, BATCH, 1, "batch", cpu_s=0)
    node.manager.step("start", 1, "batch", pid=BATCH)
    node.use(1.0, {"cpu": 100.0})
    stepd(node, STEP, 1, "0", cpu_s=0)
    node.manager.step("start", 1, "0", pid=STEP)
    node.use(2.0, {"cpu": 100.0})
    stepd(node, OTHER_STEP, 1, "1", cpu_s=0)
    node.manager.step("start", 1, "1", pid=OTHER_STEP)
    stepd(node, STEP, 1, "0", cpu_s=3.0)
    stepd(node, OTHER_STEP, 1, "1", cpu_s=1.0)
    stepd(node, BATCH, 1, "batch", cpu_s=50.0)
    node.use(4.0, {"cpu": 100.0})
    node.manager.step("end", 1, "0")
    node.use(1.0, {"cpu": 100.0})
    assert [joules(node, pid) for pid in (EXTERN, BATCH, OTHER_STEP)] == [800, 100, 200]
    node.manager.step("end", 1, "1")
    node.manager.step("end", 1, "batch")
    node.manager.step("end", 1, "extern")
    node.end(1)
    records = {record.step: joules_of(record)["cpu"] for record in node.all_records()}
    assert records == {"0": 500.0, "1": 200.0, "batch": 100.0, "extern": 800.0, None: 800.0}


def test_steps_of_unknown_cpu_time_share_equally_and_dead_ones_get_nothing(node):
    node.begin(1, None, exclusive=True)
    for pid, name in ((STEP, "0"), (OTHER_STEP, "1")):
        stepd(node, pid, 1, name)
        node.manager.step("start", 1, name, pid=pid)
    node.use(2.0, {"cpu": 100.0})
    assert [joules(node, STEP), joules(node, OTHER_STEP)] == [100, 100]
    title(node, STEP, "/bin/other")  # its end was not reported, and the process id belongs to another one
    node.use(1.0, {"cpu": 100.0})
    assert joules(node, OTHER_STEP) == 200


def test_a_checkpoint_keeps_the_energy_of_steps_also_that_of_an_earlier_release(node):
    node.begin(1, None, exclusive=True)
    stepd(node, STEP, 1, "0")
    node.manager.step("start", 1, "0", pid=STEP)
    node.use(2.0, {"cpu": 100.0})
    assert joules(node, STEP) == 200
    (session,) = node.manager._sessions.values()
    old, new = (json.loads(json.dumps({**session.dump(), "trace": None})) for _ in range(2))
    del old["divided_uj"], old["steps"]["0"]["cpu_time"], old["steps"]["0"]["energy_uj"]
    for data in (new, old):
        loaded = Session.load(data)
        assert loaded.steps["0"].energy_uj["cpu"] == 200_000_000
        assert loaded.divided_uj == session.divided_uj


def test_a_requeued_job_starts_at_zero_under_another_epoch(node):
    node.begin(1, None, exclusive=True)
    stepd(node, EXTERN, 1, "extern")
    node.use(2.0, {"cpu": 100.0})
    first = ask(node, EXTERN)
    node.end(1)
    assert ask(node, EXTERN) == {"known": False}
    node.manager.begin(node.env(1, None, exclusive=True) | {"SLURM_RESTART_COUNT": "1"})
    assert ask(node, EXTERN) == {"known": False}  # nothing is measured yet
    node.use(1.0, {"cpu": 100.0})
    later = ask(node, EXTERN)
    assert later["joules"] == 100 and later["epoch"] != first["epoch"]


def test_an_unknown_job_or_step_has_no_value(node):
    stepd(node, EXTERN, 77, "extern")
    assert ask(node, EXTERN) == {"known": False}
    title(node, STEP, "/usr/sbin/slurmstepd")
    assert ask(node, STEP) == {"known": False}


def test_only_root_may_ask_and_is_identified_by_the_kernel(node):
    """Only root may query senergyd for energy, and senergyd asks the kernel who the caller is.

    The kernel states the process id of the caller at the other end of the socket. In the test, the caller
    is the test process, which is not a slurmstepd. Root therefore gets the response for the node.
    """

    async def work(function, *arguments):
        return function(*arguments)

    server = AgentServer(node.manager, work)
    line = b'{"op":"acct_gather_energy"}'
    refused = asyncio.run(server.respond(line, 4242, pid=SLURMD))
    assert (refused["ok"], refused["code"]) == (False, 5)

    async def through_a_socket(path: Path) -> dict:
        await server.open(path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"op":"acct_gather_energy"}\n')
        answer = json.loads(await reader.readline())
        writer.close()
        await server.close()
        return answer

    stepd(node, os.getpid(), 5, "extern")  # the title that the kernel's pid leads to
    assert asyncio.run(through_a_socket(node.folder / "agent.sock")) == {"ok": True, "known": False}
