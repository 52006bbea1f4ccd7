"""Test how the results of the thesis depend on assumptions that the thesis leaves open.

The sweep makes the tables and figures of docs/thesis.md. Each point of the sweep is one set of assumptions.

`python benchmarks/thesis/sweep.py --out DIR` runs all points and writes `sweep.json`, `sweep.md` and one SVG
file per figure. `--figures speedup` restricts the sweep to one figure. An interrupted sweep resumes from
DIR.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import sweep_plots
from reproduce import read
from sweep_points import QUANTITIES, QuantityVerdict, ThesisPoint, as_object, points, values, verdicts

from slurm_energy.errors import EXIT_OK, EnergyError
from slurm_energy.simulator.campaigns import campaign
from slurm_energy.simulator.model_predictions import predict


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", metavar="N", type=int, default=20, help="runs per policy (default 20)")
    parser.add_argument("--jobs", metavar="N", type=int, help="processes (default: one per core)")
    names = sorted({point.figure for point in points()})
    parser.add_argument("--figures", default=",".join(names), help=f"figures, of {', '.join(names)}")
    args = parser.parse_args(words)
    wanted = args.figures.split(",")
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"figure '{unknown[0]}' is not known; known: {', '.join(names)}")
    try:
        results = {point: _run(point, args) for point in points() if point.figure in wanted}
    except EnergyError as error:
        print(f"sweep.py: error: {error}", file=sys.stderr)
        return error.exit_code
    objects = [as_object(point, sample) for point, sample in results.items()]
    (args.out / "sweep.json").write_text(json.dumps(objects, indent=1) + "\n")
    table = "\n".join(markdown(results)) + "\n"
    (args.out / "sweep.md").write_text(table)
    for name in wanted:
        sweep_plots.draw(name, results, args.out / f"thesis-{name}.svg")
    print(table, end="")
    return EXIT_OK


def _run(point: ThesisPoint, args: argparse.Namespace) -> dict[str, list[float]]:
    scenario = point.scenario(read("thesis-pareto"), args.seeds)
    name = "-".join(f"{value}" for value in (point.figure, point.label, point.x))
    folder = args.out / "points" / "".join(c if c.isalnum() or c in ".-" else "_" for c in name)
    tasks = campaign.tasks(scenario)
    return values(campaign.campaign(scenario, tasks, predict, jobs=args.jobs, folder=folder))


def markdown(results: dict[ThesisPoint, dict[str, list[float]]]) -> list[str]:
    """Return the results as Markdown tables, one per figure of the thesis.

    A table contains the 95 % interval of every quantity. A bold value agrees with the thesis. For a value
    with a question mark, the agreement is undecided. The last column counts the values that agree.
    """
    lines: list[str] = []
    for figure in dict.fromkeys(point.figure for point in results):
        lines += ["", f"### {figure}", ""]
        lines.append("| | " + " | ".join(quantity.name for quantity in QUANTITIES) + " | agree |")
        lines.append("|---" * (len(QUANTITIES) + 2) + "|")
        lines.append("| thesis | " + " | ".join(f"{quantity.thesis:g}" for quantity in QUANTITIES) + " | |")
        for point, sample in results.items():
            if point.figure == figure:
                of_point = verdicts(sample)
                cells = [_cell(v) for v in of_point.values()]
                agree = sum(v.agrees == "yes" for v in of_point.values())
                lines.append(f"| {point.label}, {point.x:g} | {' | '.join(cells)} | {agree} |")
    return lines[1:]


def _cell(judged: QuantityVerdict) -> str:
    text = f"{judged.mean:.1f}±{judged.half_width:.1f}"
    return {"yes": f"**{text}**", "undecided": f"{text} ?"}.get(judged.agrees, text)


if __name__ == "__main__":
    sys.exit(main())
