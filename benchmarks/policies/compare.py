"""Compare scheduling policies with the policy Zeus on several families of workloads.

`python benchmarks/policies/compare.py --traces DIR --out DIR` simulates every policy on every family at
every load and prints a table. The simulated parts of the traces were not used for tuning the policies. With
`--tuning`, the tuning parts are simulated instead. To tune the weights of a policy, set them with an option
such as `--weights thrift=1.5`. An interrupted comparison resumes from `runs.jsonl` in the output folder.
README.md describes the families.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Any

from families import FAMILIES
from runs import Run, run_one
from scipy.stats import t as student_t

POLICIES = ("zeus", "metis", "kairos", "aurachronos", "blend", "fcfs")
GOAL_ENERGY, GOAL_JCT = -5.0, 5.0

Figures = Mapping[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    args = _arguments(words)
    args.out.mkdir(parents=True, exist_ok=True)
    present = [name for name in args.families if _present(name, args.traces)]
    weights = tuple(sorted((name, float(value)) for name, value in (w.split("=") for w in args.weights)))
    wanted = [
        Run(family, load, part, args.tuning, policy, weights if policy == args.weighted else ())
        for family in present
        for load in args.loads
        for part in range(args.parts)
        for policy in args.policies
    ]
    figures = _simulate(wanted, args)
    rows = _rows(wanted, figures, args)
    (args.out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = "\n".join(markdown(rows)) + "\n"
    (args.out / "table.md").write_text(table)
    print(table, end="")
    return 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of the trace files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--families", type=_list, default=list(FAMILIES), help="default: all")
    parser.add_argument(
        "--loads", type=lambda text: [float(x) for x in text.split(",")], default=[0.5, 0.7, 0.9]
    )
    parser.add_argument("--policies", type=_list, default=list(POLICIES))
    parser.add_argument("--parts", type=int, default=5, help="parts of each family (default 5)")
    parser.add_argument("--part-jobs", type=int, default=300, help="jobs of a part (default 300)")
    parser.add_argument("--tuning", action="store_true", help="use the parts for tuning")
    parser.add_argument("--weights", type=_list, default=[], help="weights as name=value, for --weighted")
    parser.add_argument("--weighted", default="metis", help="policy that --weights concern (default metis)")
    parser.add_argument("--caps", type=_list, default=[], help="power caps in watts that all shapes may have")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    args = parser.parse_args(words)
    if "zeus" not in args.policies:
        parser.error("the policies must contain zeus, with which the others are compared")
    for name in args.families:
        if name not in FAMILIES:
            parser.error(f"family '{name}' is not known; known: {', '.join(FAMILIES)}")
    return args


def _list(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _present(name: str, folder: Path) -> bool:
    file = FAMILIES[name].file
    if file and not (folder / file).exists():
        print(f"compare.py: note: {folder / file} is absent: family {name} is left out", file=sys.stderr)
        return False
    return True


def _simulate(wanted: Sequence[Run], args: argparse.Namespace) -> dict[Run, Figures]:
    """Return the results of all wanted simulations. Simulate only those missing in `runs.jsonl`."""
    path = args.out / "runs.jsonl"
    digest = {"part_jobs": args.part_jobs, "caps": args.caps}
    known: dict[Run, Figures] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        if entry["digest"] == digest:
            key = entry["run"]
            key["weights"] = tuple(tuple(pair) for pair in key["weights"])
            known[Run(**key)] = entry["figures"]
    missing = [run for run in wanted if run not in known]
    caps = [float(cap) for cap in args.caps]
    with ProcessPoolExecutor(args.jobs) as pool, path.open("a") as file:
        waiting = {pool.submit(run_one, run, args.traces, args.part_jobs, caps): run for run in missing}
        for future in as_completed(waiting):
            run, figures = waiting[future], future.result()
            if figures is not None:
                known[run] = figures
                entry = {"digest": digest, "run": asdict(run), "figures": figures}
                file.write(json.dumps(entry) + "\n")
                file.flush()
    return known


def _rows(
    wanted: Iterable[Run], figures: Mapping[Run, Figures], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return one result row per job family, load and policy, compared with the policy Zeus.

    Differences are paired: each run is compared with the Zeus run of the same jobs.
    """
    groups: dict[tuple[str, float, str], list[tuple[Figures, Figures]]] = defaultdict(list)
    zeus = {(run.family, run.load, run.part): figures[run] for run in figures if run.policy == "zeus"}
    for run in wanted:
        if run in figures:
            pair = (figures[run], zeus[run.family, run.load, run.part])
            groups[run.family, run.load, run.policy].append(pair)
    rows = []
    for (family, load, policy), pairs in groups.items():
        energy = [_cluster_energy_percent(*pair) for pair in pairs]
        jct = [100 * (own["jct_s"] / other["jct_s"] - 1) for own, other in pairs]
        missed = statistics.fmean(own["missed"] or 0.0 for own, _ in pairs)
        zeus_missed = statistics.fmean(other["missed"] or 0.0 for _, other in pairs)
        row = {
            "family": family,
            "origin": FAMILIES[family].origin,
            "held_out": "second half" if FAMILIES[family].tuned else "family",
            "load": load,
            "policy": policy,
            "parts": len(pairs),
            "energy_percent": statistics.fmean(energy),
            "energy_interval": _half_width(energy),
            "jct_percent": statistics.fmean(jct),
            "jct_interval": _half_width(jct),
            "jct_minutes": statistics.fmean(own["jct_s"] / 60 for own, _ in pairs),
            "max_wait_hours": max(own["max_wait_s"] / 3600 for own, _ in pairs),
            "missed_percent": 100 * missed,
            "preemptions": statistics.fmean(own["preemptions"] for own, _ in pairs),
        }
        row["goal"] = (
            row["energy_percent"] <= GOAL_ENERGY and row["jct_percent"] <= GOAL_JCT and missed <= zeus_missed
        )
        if args.tuning:
            row["held_out"] = "tuning"
        rows.append(row)
    return rows


def _cluster_energy_percent(own: Figures, other: Figures) -> float:
    """Return by how many percent the cluster used more energy in the run `own` than in `other`.

    The energy is counted from the start to the later of the two ends. The cluster stays on after the last
    job of a run. Its idle power therefore counts until the later end.
    """
    end_s = max(own["end_s"], other["end_s"])
    joules = [run["energy_joules"] + run["idle_watts"] * (end_s - run["end_s"]) for run in (own, other)]
    return 100 * (joules[0] / joules[1] - 1)


def _half_width(sample: Sequence[float]) -> float | None:
    """Return half of the 95 % confidence interval of the mean (Student's t); None for one value."""
    if len(sample) < 2:
        return None
    quantile = float(student_t.ppf(0.975, len(sample) - 1))
    return quantile * statistics.stdev(sample) / sqrt(len(sample))


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a Markdown table that compares each scheduling policy with the policy Zeus.

    The table has one line for each family of workloads and each load. A cell states the energy and the job
    completion time (JCT) of a policy relative to Zeus.
    """
    policies = [name for name in dict.fromkeys(row["policy"] for row in rows) if name != "zeus"]
    cells = {(row["family"], row["load"], row["policy"]): row for row in rows}
    lines = ["| family | load | parts | missed, zeus | " + " | ".join(policies) + " |"]
    lines.append("|---" * (4 + len(policies)) + "|")
    for family, load in dict.fromkeys((row["family"], row["load"]) for row in rows):
        zeus = cells[family, load, "zeus"]
        columns = [_cell(cells[family, load, name]) for name in policies]
        first = f"{family} ({zeus['origin']}, {zeus['held_out']})"
        missed = f"{zeus['missed_percent']:.0f} %"
        lines.append(f"| {first} | {load:g} | {zeus['parts']} | {missed} | {' | '.join(columns)} |")
    return lines


def _cell(row: Mapping[str, Any]) -> str:
    def interval(value: float, half_width: float | None) -> str:
        return f"{value:+.1f}" if half_width is None else f"{value:+.1f}±{half_width:.1f}"

    energy = interval(row["energy_percent"], row["energy_interval"])
    jct = interval(row["jct_percent"], row["jct_interval"])
    text = f"{energy}; {jct}; {row['missed_percent']:.0f} %"
    if row["preemptions"]:
        text += f"; {row['preemptions']:.0f} int."
    return f"**{text}**" if row["goal"] else text


if __name__ == "__main__":
    sys.exit(main())
