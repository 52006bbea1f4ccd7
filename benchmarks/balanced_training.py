"""Benchmark of balanced data-parallel training on three lab nodes with different speeds.

    .venv/bin/python benchmarks/balanced_training.py --dir FOLDER [--scenario NAME] [--json FILE]

The benchmark runs examples/training/balanced.sbatch under real Slurm. A share is the part of a batch that a
node processes. The scenarios are:
- `shares`: equal shares, the fast node alone, and balanced shares; three repetitions;
- `held-out`: the same with other speeds of the nodes;
- `cap`: the fast node is capped while a program trains;
- `loss`: the slow node is removed;
- `network`: different numbers of nodes, by latency and bandwidth.

The stated energy is the energy of all three nodes in the lab's model, including idle nodes. Finished runs
are stored in FOLDER/runs.jsonl. The same command continues an interrupted benchmark. Needs root and PyTorch.
Other programs on the machine disturb the measurement.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from balanced_lab import Row, TrainingLab, TrainingRuns
from balanced_network import SPEEDS, network_claims
from claims import Claim, at_least, at_most, publish

from slurm_energy_lab.cluster import processes
from slurm_energy_lab.interconnect.links import LinkSpec

HELD_OUT_SPEEDS = (1.0, 0.7, 0.4)
"""Speeds with which no bound of the balancer was chosen."""
LINKS = LinkSpec(0.0002, 1e9)
REPETITIONS = 3
STUDENT_95 = 4.303
"""95 % quantile of Student's t with 2 degrees of freedom, two-sided, for 3 repetitions."""
STEPS_OF_EPOCH = 10
MODES = {
    "fast node": (["--epochs", "4", "--goal", "time"], "n1"),
    "equal": (["--epochs", "4", "--goal", "time", "--equal"], "n1,n2,n3"),
    "time": (["--epochs", "8", "--goal", "time"], "n1,n2,n3"),
    "edp": (["--epochs", "8", "--goal", "edp"], "n1,n2,n3"),
}


def wait_for_epochs(output: Path, count: int) -> None:
    """Wait until the program has printed a number of epochs."""
    deadline_s = time.monotonic() + 300
    while output.read_text().count('{"epoch"') < count:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no epoch {count}:\n{output.read_text()}")
        time.sleep(0.1)


def share_runs(runs: TrainingRuns, speeds: tuple[float, ...]) -> dict[str, list[Row]]:
    """Run the training with each division of the batch (mode), and return the runs of each mode.

    Each repetition runs all modes, one after another.
    """
    rows: dict[str, list[Row]] = {mode: [] for mode in MODES}
    for repetition in range(REPETITIONS):
        for mode, (arguments, nodes) in MODES.items():
            name = f"{mode}, run {repetition + 1}"
            rows[mode].append(runs.row(name, LINKS, speeds, _job(arguments, nodes)))
    for mode, own in rows.items():
        seconds, joules = (interval([row[key] for row in own]) for key in ("seconds", "joules"))
        print(f"{mode:<10} {seconds} s/epoch {joules} J/epoch", flush=True)
    return rows


def _job(arguments: Sequence[str], nodes: str) -> Callable[[TrainingLab], Row]:
    return lambda lab: lab.run(arguments, nodes).row()


def interval(values: Sequence[float]) -> str:
    """Return the mean of repeated measurements and the half-width of its 95 % interval, as text."""
    half = STUDENT_95 * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.4g} ± {half:.2g}"


def share_claims(runs: TrainingRuns, speeds: tuple[float, ...], prefix: str) -> Iterator[Claim]:
    """Yield the checks of the benchmark's targets for a balanced division of the batch.

    The checks compare the time and the energy of balanced training with three others: training with equal
    shares, training on the fast node alone, and the ideal time. The compared ratios are means over the
    repetitions.
    """
    rows = share_runs(runs, speeds)

    def ratios(mode: str, other: str, key: str) -> list[float]:
        return [one[key] / two[key] for one, two in zip(rows[mode], rows[other], strict=True)]

    def with_interval(claim: Claim, values: Sequence[float]) -> Claim:
        return claim | {"interval": interval(values)}

    ideal = [ratio * sum(speeds) for ratio in ratios("time", "fast node", "seconds")]
    yield with_interval(at_most(f"{prefix}balanced_time_to_ideal", statistics.fmean(ideal), 1.1), ideal)
    if speeds == SPEEDS:
        gain = ratios("equal", "time", "seconds")
        yield with_interval(at_least(f"{prefix}equal_to_balanced_time", statistics.fmean(gain), 1.8), gain)
    for other in ("equal", "fast node"):
        saving = [1 - ratio for ratio in ratios("time", other, "joules")]
        name = f"{prefix}balanced_energy_saving_over_{other.replace(' ', '_')}"
        yield with_interval(at_least(name, statistics.fmean(saving), 0.2), saving)


def shares(runs: TrainingRuns) -> Iterator[Claim]:
    """Yield claims (comparisons with targets) about the division of the training among the nodes.

    The nodes have the default speeds `SPEEDS`.
    """
    return share_claims(runs, SPEEDS, "")


def held_out(runs: TrainingRuns) -> Iterator[Claim]:
    """Yield the results of the benchmark for node speeds that were not used to develop the balancer."""
    return share_claims(runs, HELD_OUT_SPEEDS, "held_out_")


def capped_node(runs: TrainingRuns) -> Iterator[Claim]:
    """Yield the check that training is rebalanced soon enough after a power cap slows one node.

    The cap is set during the training. The slower node must then get fewer samples of each batch. The check
    limits the number of steps until this has happened.
    """
    row = runs.row("capped fast node", LINKS, SPEEDS, run_with_cap)
    print(f"cap of the fast node: samples {row['before']} before, {row['after']} after", flush=True)
    yield at_most("steps_until_a_capped_node_is_rebalanced", row["steps"], 20)


def run_with_cap(lab: TrainingLab) -> Row:
    """Cap the power of the fast node after four epochs, and measure how its part of the work changes.

    Return the number of steps until the fast node's share of the samples has fallen by 15 %. The result also
    contains the samples of each node before and after the change.
    """

    def cap(output: Path) -> None:
        wait_for_epochs(output, 4)
        files = "/sys/class/powercap/intel-rapl:[01]/constraint_0_power_limit_uw"
        command = f"for file in {files}; do echo 75000000 > $file; done"
        argv = [sys.executable, "-m", "slurm_energy.cli.main", "lab", "exec", "n1", "sh", "-c", command]
        own = {**os.environ, **lab.lab.environment(), "SENERGY_LAB_DIR": str(lab.place.root)}
        subprocess.run(argv, env=own, check=True)

    run = lab.run(["--epochs", "8", "--goal", "time"], act=cap)
    before = run.epochs[3]["samples"]
    after = [change for change in run.changes if change[0] >= 4 and change[2][0] < 0.85 * before[0]]
    steps = (after[0][0] - 4) * STEPS_OF_EPOCH + after[0][1] if after else 1000
    return {"steps": steps, "before": before, "after": run.epochs[-1]["samples"]}


def lost_node(runs: TrainingRuns) -> Iterator[Claim]:
    """Yield the check of a target: how many epochs a training repeats after it has lost a node."""
    row = runs.row("lost node", LINKS, SPEEDS, run_with_loss)
    print(f"lost node: epochs {row['epochs']}, {row['restarts']}", flush=True)
    # The epochs before the last checkpoint are not repeated: at most one epoch line appears twice.
    repeated = len(row["epochs"]) - len(set(row["epochs"]))
    done = row["epochs"][-1] == 5 and row["ranks"] == 2
    yield at_most("epochs_repeated_after_a_lost_node", repeated if done else 100, 1)


def run_with_loss(lab: TrainingLab) -> Row:
    """Kill a node during a training, after three epochs, and return how the training continued.

    The result contains the completed epochs, the final number of processes (ranks), and the restarts.
    """

    def lose(output: Path) -> None:
        wait_for_epochs(output, 3)
        pid = processes.SupervisorClient(lab.place.supervisor_socket("n3")).pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    run = lab.run(["--epochs", "6", "--goal", "time", "--checkpoint-every-s", "3"], act=lose)
    restarts = [line for line in run.output.splitlines() if line.startswith("restart")]
    epochs = [line["epoch"] for line in run.epochs]
    return {"epochs": epochs, "ranks": len(run.epochs[-1]["samples"]), "restarts": restarts}


SCENARIOS: dict[str, Callable[[TrainingRuns], Iterator[Claim]]] = {
    "shares": shares,
    "held-out": held_out,
    "cap": capped_node,
    "loss": lost_node,
    "network": network_claims,
}


def main() -> int:
    """Run the benchmark and return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True, help="folder of the finished runs")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python with PyTorch")
    parser.add_argument("--scenario", choices=SCENARIOS, help="all if not given")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    names = [arguments.scenario] if arguments.scenario else list(SCENARIOS)
    try:
        with TrainingRuns(arguments.dir / "runs.jsonl", arguments.python) as runs:
            claims = itertools.chain.from_iterable(SCENARIOS[name](runs) for name in names)
            return publish(claims, arguments.json)
    except KeyboardInterrupt:
        print("balanced_training: interrupted: the same command continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
