"""Tests of the line about energy that appears at the end of a job's output.

The tests check the text that senergyd sends to the plugin energy.so.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from shared_node import SharedNode

from slurm_energy.agent.jobs import output_line
from slurm_energy.config import AgentConfig
from slurm_energy.grid.present_factors import PresentFactors

FACTORS = PresentFactors(400.0, 0.25, "EUR", 1.5, "yearly DE")


@pytest.fixture
def node(tmp_path):
    made = SharedNode(tmp_path, ("cpu",))
    yield made
    made.die()


def ended_batch_step(node, step="batch"):
    node.begin(7, 8, exclusive=True)
    node.manager.step("start", 7, step)
    node.use(36.0, {"cpu": 100.0}, {7: 8.0})
    return node.manager.step("end", 7, step)


def test_the_end_of_the_batch_step_tells_energy_emissions_and_cost(node):
    node.manager.output_line.factors = FACTORS
    response = ended_batch_step(node)
    # 3600 J are 0.001 kWh; with the PUE 0.0015 kWh, of 400 g and 0.25 EUR per kWh (0.000375 EUR).
    assert response["line"] == (
        f"senergy: 3.60 kJ in 00:00:36 on {node.manager.node}, mean 100 W;"
        " 600 mg CO2e (yearly DE, PUE 1.5); 0.00038 EUR"
    )


def test_unknown_factors_are_left_out(node):
    assert ended_batch_step(node)["line"].endswith("mean 100 W")


def test_other_steps_and_sites_without_the_line_get_none(node):
    assert ended_batch_step(node, "0") == {"known": True}
    node.end(7)
    node.manager.config = dataclasses.replace(node.config, agent=AgentConfig(output_line=False))
    assert ended_batch_step(node) == {"known": True}


@examples(100)
@given(st.text(max_size=600))
def test_the_line_fits_and_needs_no_escapes(text):
    line = output_line._plain(text)
    response = json.dumps({"known": True, "ok": True, "line": line}, separators=(",", ":"))
    assert json.dumps(line) == f'"{line}"' and len(response) < 500 and line.isascii()


@examples(100)
@given(st.recursive(st.none() | st.text() | st.floats() | st.integers(), st.lists, max_leaves=3))
def test_malformed_factors_count_as_unknown(value):
    for data in (value, {"grams_per_kwh": value, "cost_per_kwh": value, "currency": value, "basis": value}):
        factors = PresentFactors.from_json(data)
        assert isinstance(factors.text(1.0), str)
        assert PresentFactors.from_json(factors.to_json()) == factors


def test_unknown_energy_gives_no_line(tmp_path):
    made = SharedNode(tmp_path, ())
    made.begin(7, 8, exclusive=True)
    made.manager.step("start", 7, "batch")
    made.use(36.0, {})
    assert made.manager.step("end", 7, "batch") == {"known": True}
    made.die()
