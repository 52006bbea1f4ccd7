from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from slurm_energy.garbage_collection import loading_modules, paused_collection

EXIT_WITH_CYCLE = """
import sys
from slurm_energy.command_line.guarded import guarded

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")

cycle = Cycle()
del cycle
sys.exit(guarded("senergy", lambda: 0) if sys.argv[1] == "guarded" else 0)
"""


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    yield
    (gc.enable if enabled else gc.disable)()
    if not frozen:
        gc.unfreeze()


def test_collection_pauses_within_the_block_also_if_it_fails() -> None:
    gc.enable()
    with pytest.raises(KeyError), paused_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_pause_leaves_a_stopped_collector_stopped() -> None:
    gc.disable()
    with paused_collection():
        pass
    assert not gc.isenabled()


def test_objects_loaded_in_the_block_are_exempt_from_collections() -> None:
    gc.enable()
    before = gc.get_freeze_count()
    with loading_modules():
        assert not gc.isenabled()
        loaded = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(loaded)


@pytest.mark.parametrize(("end", "output"), [("plain", "collected\n"), ("guarded", "")])
def test_programs_exit_without_a_collection(end: str, output: str) -> None:
    command = [sys.executable, "-c", EXIT_WITH_CYCLE, end]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "daemon"),
    [
        ("slurm_energy.agent.main", "slurm_energy.agent.daemon"),
        ("slurm_energy.controller.main", "slurm_energy.controller.daemon"),
    ],
)
def test_help_of_a_daemon_does_not_import_the_daemon(program: str, daemon: str) -> None:
    command = f"import sys, {program} as program\ntry: program.main(['--help'])\nexcept SystemExit: pass\n"
    command += f"sys.exit('{daemon}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0
