"""Tests of the power that budgets assume for nodes that are powered down or booting.

The state of the nodes is read from Slurm's output.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from slurm_energy.config import Config
from slurm_energy.config.power_saving_section import PowerSavingConfig
from slurm_energy.controller.budgets.inputs import BudgetInputs
from slurm_energy.log_once import RepeatedFailureLog

STATES = {"n1": "IDLE", "n2": "IDLE+POWERED_DOWN", "n3": "IDLE+POWERED_DOWN", "n4": "ALLOCATED+POWERING_UP"}


@pytest.mark.parametrize("measured", [{}, {"n3": 11.0}])
def test_measured_power_precedes_the_configured(measured: dict[str, float]) -> None:
    def run(argv: Any) -> str:
        return "\n".join(
            f"NodeName={name} CPUTot=4 State={state} Partitions=p" for name, state in STATES.items()
        )

    failures = RepeatedFailureLog(logging.getLogger("test"))
    nothing: Any = None
    inputs = BudgetInputs(nothing, nothing, run, failures, lambda: None)
    inputs.off_watts = measured
    config = Config(power_saving=PowerSavingConfig(off_watts=7.0, boot_watts=300.0))
    asyncio.run(inputs._read_nodes(config))
    assert {name: node.off_watts for name, node in inputs.nodes.items() if node.is_off} == {
        "n2": 7.0,
        "n3": measured.get("n3", 7.0),
    }
    assert {name: node.boot_watts for name, node in inputs.nodes.items() if node.boot_watts is not None} == {
        "n4": 300.0
    }
