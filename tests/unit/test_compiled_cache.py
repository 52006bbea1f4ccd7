"""Tests of the cache of the simulator's machine code.

After a change of any source of the simulator, all its functions must be compiled again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="simulation is an extra")

from slurm_energy.simulator.kernels.compiled import compiled, compiled_entry

PACKAGE = "slurm_energy/simulator/kernels"
CALLER = """
from slurm_energy.simulator.kernels.callee import value
from slurm_energy.simulator.kernels.compiled import compiled_entry, is_cached


@compiled_entry()
def twice() -> float:
    return 2.0 * value()
"""
CALLEE = """
from slurm_energy.simulator.kernels.compiled import compiled


@compiled
def value() -> float:
    return {value}
"""


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """Return a folder with a small package for tests of the cache of compiled functions.

    The package contains a copy of the module that defines the decorator for compiled functions. Two
    further modules contain functions with this decorator.
    """
    root = tmp_path / "site"
    folder = root / PACKAGE
    folder.mkdir(parents=True)
    for parent in (folder, *list(folder.parents)[:2]):
        (parent / "__init__.py").touch()
    shutil.copy(Path(__file__).parents[2] / PACKAGE / "compiled.py", folder)
    (folder / "caller.py").write_text(CALLER)
    (folder / "callee.py").write_text(CALLEE.format(value="1.0"))
    return root


def run(root: Path) -> tuple[bool, float]:
    """Call the compiled function in a new interpreter.

    Returns:
        Whether its machine code was in the cache before the call, and the value that the call
        returned.
    """
    code = "from slurm_energy.simulator.kernels.caller import *; print(is_cached(twice), twice())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    cached, value = done.stdout.split()
    return cached == "True", float(value)


@pytest.mark.slow
def test_a_change_of_a_called_function_reaches_its_callers(installation: Path) -> None:
    assert run(installation) == (False, 2.0)
    assert run(installation) == (True, 2.0)
    (installation / PACKAGE / "callee.py").write_text(CALLEE.format(value="3.0"))
    assert run(installation) == (False, 6.0)
    assert run(installation) == (True, 6.0)


@pytest.mark.slow
def test_a_function_for_compiled_callers_refuses_python_callers() -> None:
    one = compiled(lambda: 1)
    two = compiled_entry()(lambda: 2 * one())
    for _ in range(2):  # before and after its compilation
        with pytest.raises(TypeError, match="only functions compiled by Numba call it"):
            one()
        assert two() == 2
