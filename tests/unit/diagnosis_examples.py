"""Responses of a controller about a synthetic job, for tests of `senergy diagnose`.

The responses contain the job's energy records with power traces, and the observations of its nodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import report_examples

from slurm_energy.diagnosis.json_codec import node_to_json
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.records import ComponentEnergy, JobDevice
from slurm_energy.reports.trace import encode_trace


def answers(observation: JobObservation, job_id: int = 7, **info: Any) -> dict[str, Any]:
    """Return stub responses of the controller to the requests of `senergy diagnose`.

    The responses describe the job in `observation`.
    """
    context, records = observation.context, []
    end = context.start_s + context.elapsed_s
    job = report_examples.job_info(
        job_id, state=context.state, start=context.start_s, end=end, nodes=len(context.nodes), **info
    )
    for node in observation.nodes:
        energies = context.energy_joules[node.node]
        parts = tuple(ComponentEnergy(name, joules, "lab") for name, joules in energies.items())
        gpus = context.gpus.get(node.node, ())
        record = replace(
            report_examples.record(job_id, node.node),
            start=context.start_s,
            end=end,
            components=parts,
            cpus=(context.cpus or 0) // len(context.nodes),
            gpus=gpus,
            devices=tuple(JobDevice(f"gpu[{index}]", "NVIDIA H100", 200.0, 400.0) for index in gpus),
        )
        power = {s.part: list(s.values) for s in node.series if s.name == "power_watts"}
        trace = encode_trace(context.start_s, next(s.interval_s for s in node.series), power)
        records.append(report_examples.answer(record, job, trace))
    signals = [
        replace(node, series=tuple(s for s in node.series if s.name != "power_watts"))
        for node in observation.nodes
    ]
    return {
        f"/v1/jobs/{job_id}": {"records": records},
        f"/v1/jobs/{job_id}/observation": {"nodes": [node_to_json(node) for node in signals]},
    }
