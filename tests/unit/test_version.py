"""Test that the version of slurm-energy is defined in a single place.

setuptools must be able to read it without importing the package.
"""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import slurm_energy

ROOT = Path(__file__).parents[2]


def test_the_version_is_defined_once() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == "attr: slurm_energy.__version__"
    statements = ast.parse((ROOT / "slurm_energy/__init__.py").read_text()).body
    constants = [
        statement.value.value
        for statement in statements
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and [target.id for target in statement.targets if isinstance(target, ast.Name)] == ["__version__"]
    ]
    assert constants == [slurm_energy.__version__]  # otherwise setuptools would import the package
