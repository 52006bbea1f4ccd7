"""Tests of slurmctld's site factor plugin, compiled with sanitizers.

A site factor is a term of the job priority. Random jobs replace the jobs of slurmctld.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_energy.priority import table_file
from slurm_energy.slurm.queue.table_source import QueueTableSource

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
DRIVER = Path(__file__).parent / "native" / "plugin_driver.c"
PARTS = ("site_factor_energy.c", "job_facts.c", "log_once.c", "priority_table.c", "queue_writer.c")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a table is believed only if it is root's"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    # Looked for only now: tests of a whole cluster, which come first, may have fetched it.
    trees = sorted((ROOT / "build" / "slurm-source").glob("*/tree/config.h"))
    if not trees:
        pytest.skip("no source of Slurm in build/: senergy build-plugins fetches it")
    program = tmp_path_factory.mktemp("plugin") / "driver"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-DHAVE_CONFIG_H", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", PLUGINS]
    sources = [*(PLUGINS / part for part in PARTS), DRIVER]
    subprocess.run(
        ["gcc", *flags, "-isystem", trees[-1].parent, "-o", program, *sources], check=True, timeout=100
    )
    return program


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_jobs_get_their_numbers_and_are_written_down(driver, tmp_path, seed):
    tmp_path.chmod(0o755)
    place, queue = tmp_path / "priority.table", tmp_path / "queue.table"
    known = {job: 1000 * job for job in range(1, 501, 2)}
    table_file.write(place, list(known), list(known.values()), default=-77)
    done = subprocess.run(
        [driver, place, queue, str(seed)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "0 lines logged\n"
    listed = {int(job): rest for job, *rest in (line.split() for line in done.stdout.splitlines())}
    for job, (_, factor, fixed, *_) in listed.items():
        assert int(factor) == (known.get(job, -77) if fixed == "free" else 0), job
    found = QueueTableSource(queue).read()
    assert found.job_id.tolist() == sorted(listed)
    assert found.state.tolist() == [int(listed[job][0]) for job in sorted(listed)]
    assert found.fixed.tolist() == [listed[job][2] == "fixed" for job in sorted(listed)]
    assert found.requeue.tolist() == [listed[job][3] == "1" for job in sorted(listed)]
    assert found.tasks.tolist() == [int(listed[job][4]) for job in sorted(listed)]
    held_cpus = [int(listed[job][5]) for job in sorted(listed)]
    assert found.held_cpus.tolist() == held_cpus and {0, 64, 96, 0xFFFFFF} <= {*held_cpus}
    assert all(re.fullmatch(r"p1\d{4}", name) for name in found.partition[0].split(","))
    assert 500 < len(found.partition[0]) <= 512
    assert all(name.startswith("ENERGY_") for flags in found.flags for name in flags)
    assert [name or "-" for name in found.qos] == [listed[job][6] for job in sorted(listed)]
    assert {"", "normal"} <= set(found.qos) and {0.25} < {*found.shares_norm.tolist()}
    moved = QueueTableSource(queue.with_name("queue.table.moved")).read()
    assert moved.job_id.tolist() == [*found.job_id.tolist(), 501]
