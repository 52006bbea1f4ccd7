"""Plausible example responses of the controller, shared by the tests of reports and commands."""

from __future__ import annotations

import math
from typing import Any

from slurm_energy.records import AppliedSetting, ComponentEnergy, EnergyRecord, Quality
from slurm_energy.reports.trace import encode_trace
from slurm_energy.reports.usage import AccountedRecord, JobUsage, summarise

START = 1795000000.0


def component(name: str, joules: float | None, source: str | None = None) -> ComponentEnergy:
    if joules is None:
        return ComponentEnergy(name, None, None)
    default = "nvml:total_energy" if name.startswith("gpu") else "powercap:intel-rapl"
    return ComponentEnergy(name, joules, source or default)


def record(job_id: int, node: str = "n1", **changes: Any) -> EnergyRecord:
    values: dict[str, Any] = {
        "cluster": "lab",
        "node": node,
        "job_id": job_id,
        "uid": 1001,
        "user": "alice",
        "policy": "performance",
        "start": START,
        "end": START + 40,
        "components": (component("cpu", 16000.0), component("dram", 1600.0), component("other", None)),
        "cpus": 64,
        "mean_watts": 440.0,
        "peak_watts": 471.5,
        "record_id": f"{job_id}-{node}-{changes.get('step')}-{changes.get('restart_count', 0)}",
    }
    return EnergyRecord(**{**values, **changes})


def job_info(job_id: int, **changes: Any) -> dict[str, Any]:
    return {
        "display_id": str(job_id),
        "name": "gemm",
        "account": "physics",
        "partition": "cpu",
        "user": "alice",
        "state": "COMPLETED",
        "submit": START - 5,
        "start": START,
        "end": START + 40,
        "elapsed_s": 40.0,
        "nodes": 1,
        "array_job_id": None,
        "array_task_id": None,
        "het_job_id": None,
        "het_offset": None,
        **changes,
    }


def answer(
    rec: EnergyRecord, job: dict[str, Any] | None, trace: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return an element of the list `records` in the form in which the controller sends it."""
    return {**rec.to_json(), "job": job, "trace": trace}


def wave(seconds: int, idle: float, busy: float, ripple: float = 0.0) -> list[float]:
    """Return example power values in watts, one per second.

    The power rises from `idle` to `busy` and falls back at the end.
    """
    out = []
    for i in range(seconds):
        ramp = min(1.0, (i + 1) / 4, (seconds - i) / 3)
        out.append(idle + (busy - idle) * ramp + ripple * math.sin(i / 2.3))
    return out


def governor(place: str, original: str, asked: str, **changes: Any) -> AppliedSetting:
    values: dict[str, Any] = {"applied": asked, "restored": True, **changes}
    return AppliedSetting(f"cpufreq.governor[{place}]", original, asked, **values)


def cpu_job() -> list[dict[str, Any]]:
    """Return example records of job 11, for tests of reports.

    The job uses the CPUs of one node with the policy `powersave`. It has a batch step and one srun step.
    """
    settings = (
        *(governor(f"policy{i}", "schedutil", "powersave") for i in range(4)),
        *(
            AppliedSetting(
                f"cpufreq.frequency[policy{i}]", "800-3400 MHz", "800-2100 MHz", "800-2100 MHz", True
            )
            for i in range(4)
        ),
    )
    common: dict[str, Any] = {"policy": "powersave", "requested": {"policy": "powersave"}, "model": "gemm"}
    info = job_info(11)
    trace = encode_trace(START, 1.0, {"cpu": wave(40, 90, 410, 9), "dram": wave(40, 18, 42, 1)})
    return [
        answer(record(11, applied=settings, **common), info, trace),
        answer(record(11, step="batch", components=(component("cpu", 15900.0),), **common), info),
        answer(
            record(
                11,
                step="0",
                start=START + 2,
                end=START + 38,
                components=(component("cpu", 15000.0),),
                **common,
            ),
            info,
        ),
    ]


def gpu_job() -> list[dict[str, Any]]:
    """Return the example records of job 15, which is task 3 of job array 12.

    The records are from two of the job's three nodes, which have GPUs. One setting was not applied, and one
    setting was not restored.
    """
    asked = {"policy": "cap", "cap_watts": "1200", "gpu_cap_watts": "250"}
    out = []
    for index, node in enumerate(("g1", "g2")):
        gpus = tuple(range(2))
        parts = (
            component("cpu", 9000.0),
            component("dram", None),
            *(component(f"gpu[{i}]", 22000.0 - 4000 * index) for i in gpus),
            component("other", 6000.0, "ipmi:dcmi"),
        )
        settings = (
            *(AppliedSetting(f"nvml.power_limit[gpu{i}]", "400 W", "250 W", "250 W", True) for i in gpus),
            AppliedSetting(
                "powercap.power_limit[package-0]", "225 W", "180 W", None, None, "not supported by this CPU"
            )
            if index
            else AppliedSetting(
                "powercap.power_limit[package-0]", "225 W", "180 W", "180 W", False, "changed since"
            ),
        )
        rec = record(
            15,
            node,
            policy="cap",
            requested=asked,
            start=START + index * 0.5,
            end=START + 100,
            components=parts,
            applied=settings,
            gpus=gpus,
            cpus=128,
            mean_watts=590.0 - 80 * index,
            peak_watts=1240.0 - 100 * index,
            seconds_above_cap=8.0 - 8 * index,
            throttled_seconds=0.0,
            uncertain_seconds=1.5 * index,
            tag="train/v2",
            restart_count=1,
        )
        trace = encode_trace(
            rec.start,
            0.5,
            {
                "cpu": wave(200, 70, 100, 3),
                "dram": [math.nan] * 200,
                "gpu[0]": wave(200, 55, 240 - 40 * index, 8),
                "gpu[1]": wave(200, 52, 236 - 40 * index, 8),
                "other": wave(200, 58, 62),
            },
        )
        out.append(
            answer(rec, job_info(15, display_id="12_3", name="train-résumé", partition="gpu", nodes=3), trace)
        )
    return out


def earlier_run() -> list[dict[str, Any]]:
    """The run of job 15 before it was requeued."""
    return [
        answer(
            record(15, "g1", policy="cap", end=START + 10),
            job_info(15, display_id="12_3", name="train-résumé"),
        )
    ]


def unknown_job() -> list[dict[str, Any]]:
    """Return job 16 of the example report, which has no measured energy and no accounting data."""
    rec = record(16, components=(), mean_watts=None, peak_watts=None, cpus=None, policy="monitor", user=None)
    return [answer(rec, None)]


def everything() -> list[dict[str, Any]]:
    return [*cpu_job(), *gpu_job(), *unknown_job()]


def usages(answers: list[dict[str, Any]], **options: Any) -> list[JobUsage]:
    return summarise((AccountedRecord.from_json(item) for item in answers), **options)


def quality(text: str) -> Quality:
    return Quality(text)


def demo_jobs() -> list[dict[str, Any]]:
    """Ten short jobs: compute-bound and memory-bound work on CPUs and GPUs under several policies."""
    plan = [
        # id, work, node, policy, seconds, cpu W, gpu W of 4, gpu cap
        (21, "gemm", "n1", "performance", 20, 430, 0, None),
        (22, "gemm", "n1", "powersave", 33, 230, 0, None),
        (23, "triad", "n1", "performance", 18, 390, 0, None),
        (24, "triad", "n1", "powersave", 19, 260, 0, None),
        (25, "gemm", "n2", "monitor", 24, 120, 1480, None),
        (26, "gemm", "n2", "cap", 37, 120, 800, 200),
        (27, "gemm", "n2", "edp", 26, 118, 1180, None),
        (28, "triad", "n2", "monitor", 22, 120, 1130, None),
        (29, "triad", "n2", "cap", 23, 120, 790, 200),
        (30, "train", "n[3-4]", "monitor", 40, 200, 2900, None),
        (31, "train", "n[3-4]", "edp", 44, 190, 2200, None),
    ]
    out = []
    for number, (job_id, work, nodes, policy, seconds, cpu, gpu, gpu_cap) in enumerate(plan):
        names = ("n3", "n4") if "[" in nodes else (nodes,)
        begin = START + 60 * number
        for node in names:
            watts = {"cpu": wave(seconds, 95, cpu, 6), "dram": wave(seconds, 20, 38, 1)}
            if gpu:
                watts |= {f"gpu[{i}]": wave(seconds, 50, gpu / 4, 6 + i) for i in range(4)}
            parts = tuple(component(name, math.fsum(values)) for name, values in watts.items())
            total = math.fsum(part.energy_joules or 0 for part in parts)
            rec = record(
                job_id,
                node,
                policy=policy,
                requested={"policy": policy, **({"gpu_cap_watts": str(gpu_cap)} if gpu_cap else {})},
                model=work,
                start=begin,
                end=begin + seconds,
                components=parts,
                gpus=tuple(range(4)) if gpu else (),
                mean_watts=total / seconds,
                peak_watts=max(map(sum, zip(*watts.values(), strict=True))),
                applied=(governor("policy0", "schedutil", policy),)
                if policy in ("performance", "powersave")
                else (),
            )
            info = job_info(job_id, name=f"{work}-{policy}", nodes=len(names), submit=begin - 2)
            out.append(answer(rec, info, encode_trace(begin, 1.0, watts)))
    return out
