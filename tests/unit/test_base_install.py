"""Tests of the command line in an installation without optional dependencies (extras).

Each command works, or names the missing extra in one line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import base_install
import budget_answers
import pytest
import queue_answers
import report_examples as examples
import usage_examples
from base_install import Outcome

from slurm_energy import __version__
from slurm_energy.cli.reference import COMMANDS, parser_of
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource

pytestmark = pytest.mark.slow
EXTRAS = ("numpy", "scipy", "numba", "matplotlib", "pyarrow", "mfusepy", "pyghmi", "amdsmi", "torch")
ANSWERS: dict[str, Any] = {
    "/v1/records": {"scope": "all", "records": examples.everything()},
    "/v1/running": {"scope": "all", "nodes": [], "records": []},
    "/v1/jobs/11": {"decisions": [], "records": examples.cpu_job()},
    "/v1/jobs/12_3": {"decisions": [], "records": examples.gpu_job()},
    "/v1/jobs/11/observation": {"nodes": []},
    "/v1/jobs/12_3/observation": {"nodes": []},
    "/v1/priority": queue_answers.priority(*queue_answers.queue()),
    "/v1/grid": GridFactors(GridFactor(GridSeries(SeriesSource("uk", "GB"), [(0.0, 60.0, 1.0)]))).to_json(),
    "/v1/usage": usage_examples.response({"edges": "1764460800,1764547200", "by": "account,user,policy"}),
    "/v1/quota": {"scope": "all", "quotas": [{"account": "physics", "resource": "energy", "unit": "J"}]},
    "/v1/quota/changes": {"scope": "all", "changes": []},
    "/v1/shares": queue_answers.shares(),
    "/v1/policies": {"policies": [], "bounds": {}, "defaults": {"policy": "monitor"}},
    "/v1/policies/file": {"text": "senergy-policies 1\npolicy edp tuned\n", "issued": 5.0},
    "/v1/nodes": {
        "scope": "all",
        "cluster": "lab",
        "version": __version__,
        "facts": [{"version": __version__}],
        "nodes": [{"node": "n1", "slurm_state": "idle", "is_expected": True, "age_s": 3.0, "facts": 0}],
    },
    "/v1/adjustments": {"permissions": None, "proposals": [], "trials": [], "values": {"nodes": 1}},
    "/v1/tuning": {"scope": "all", "programs": [{"workload": "bert-base", "runs": 1}]},
    "/v1/budget": budget_answers.status(),
    "/v1/findings": {"scope": "own", "time": 0.0, "jobs": []},
    "/v1/budget/history": budget_answers.history(),
    "/v1/budget/explain": budget_answers.explanation(),
    "/v1/status": {"version": "0.1.0", "cluster": "lab", "records": 3, "traces": 1, "nodes": []},
}
for _item in examples.everything():
    _id = (_item["job"] or {}).get("display_id") or str(_item["job_id"])
    ANSWERS.setdefault(f"/v1/jobs/{_id}", {"decisions": [], "records": [_item]})
    ANSWERS.setdefault(f"/v1/jobs/{_id}/observation", {"nodes": []})
WINDOW = "-a -S 2026-11-01 -E 2026-12-01"

WORKS = f"""
acct {WINDOW}
acct -j 11 -u alice -A physics -r cpu -N n1 -X -D -o jobid -n -p --delimiter ;
acct {WINDOW} -P --units K --total
acct {WINDOW} --noconvert
acct {WINDOW} --json
acct {WINDOW} --yaml
acct {WINDOW} -b
acct --usage
acct -e -v
acct {WINDOW} -l -s completed --name gemm
acct --config energy.toml --version
job 11
job 12_3 --ascii --config energy.toml
job 11 --json
job 11 --html label.html --title T --note N
job 11 12_3 --html comparison.html
job 11 --html budget.html --budget site
diagnose 11
diagnose 12_3 --ascii --config energy.toml
diagnose 11 --json
diagnose 11 --html diagnosis.html
diagnose --patterns -S 2026-11-01 -E 2026-12-01 -u alice -A physics --by user --top 3 --max-jobs 9 --json
diagnose --patterns -a
diagnose 11 --adjustments --json
timeline 11 -o t.json --force --json --config energy.toml
timeline 12_3 --html t.html --from +1s --to +30s --ranks 0-7
timeline 11 profile.json --offline --html p.html
label 11 --work 5 --unit image --config energy.toml
label 11 --json
label 12_3 --svg label.svg
report --html site start=now-2days
report cluster a -t kJ -T energy -s name -n -P -Q --config energy.toml
report user top -a -p
report cluster util --csv -M c1
report cluster ua --json
report --version
experiment {WINDOW}
experiment {WINDOW} --by user -n -P
experiment {WINDOW} -p
experiment -j 11 -u alice -A physics -r cpu -N n1 --tag * --json --config energy.toml
prio
prio 1
prio -l -n -j 1 -u alice -A physics -p gpu --config energy.toml
prio -w
prio -o jobid,place --sort=-place -h
prio --json --state
prio --version
prio --helpformat --verbose
prio -P -S -y -o %i,%Y
share
share -a -l -A physics -h -p
share -u alice -U -P --config energy.toml
share --json
share -e -v
share -a -o user,energykwh
share --version
budget show site --nodes --jobs --config energy.toml
budget show -o all -n -p
budget show -P --json
budget show --helpformat -v
budget plan --hours 48
budget history -S now-1hours -E now --points 9 --ascii
budget history --changes
budget history --html budget.html
budget explain 12 --json
grid show -S now-2hours -E now --zone GB -o start,carbon -n -p --config energy.toml
grid show --json
grid show -P
grid show --helpformat -v
grid export carbon -S now-1days --zone GB -o carbon.csv
grid export carbon
grid check carbon.csv --quantity carbon
grid factors DE --json
quota show physics -o account,used -n -p --config energy.toml
quota show -P --json
quota show --helpformat -v
quota changes
top --cluster --once --ascii
top --findings --once
policies --config energy.toml
policies --json
policies fetch -o policy-copy --config energy.toml
doctor --cluster --wait=0 --no-job
doctor --cluster -w n1 --json --config energy.toml
status --config energy.toml
status --json
db export records --columns
config check energy.toml
config check --json --strict
config show --config energy.toml
config show --node gpu01 --config energy.toml
config show --json
config example --reference
template list
template list --json
template show gpu
template show gpu --json
template render gpu --set command=true --config energy.toml -o job.sh
predict script.sh 1 --sbatch=-N2 --user alice --config energy.toml
predict script.sh --json
predict script.sh --best edp --slowdown 5
tune show --user alice --config energy.toml
tune show --script script.sh --script-arguments 1 --hardware A40 --json
tune show --site
profile --quiet --name x --dir lines -- true
profile --gather lines --ranks
profile --gather lines --json
profile --gather lines --csv
study init s1 --title T --json
study init s2 --objective objective.toml
study status s2
study status s1 --json
build-plugins --help
setup --help
setup undo --dry-run --json
sweep script.sh --gpu-cap 200,300 --repeat 1 --in-flight 2 --name s --state s.json --dry-run
sweep script.sh --cap 500 --cpu-freq 2000 --gpu-clock 1200 --power-profile MAX_Q --policy edp --dry-run --json
sweep script.sh --env A=1,2 --batch-size 8 --threads 4 --precision fp32 --no-reference --exhaustive --dry-run
sweep script.sh --threads 4 --dry-run --csv --config energy.toml
sweep script.sh --preset pytorch-ddp --vary cores=2 --machine 4x2 --best energy --dry-run
"""
NEEDS = {
    "lab": "lab --help\nlab run gemm\nhelp lab",
    "plots": f"""job 11 --png x.png
grid show --png x.png
experiment {WINDOW} --png x.png
budget history -S uts1794913600 -E uts1795000000 --png x.png""",
    "predict": """predict --list --json
predict --model resnet50 --gpu a100 --gpus 2 --batch 32 --precision fp32 --cap 200 --clock 900 --epochs 2
predict --model resnet50 --gpu a100 --samples 9 --accumulate 2 --eds-k 2 --calibration x.toml --plot x.png
predict --trace net.py:build --save net.json --json
calibrate rows.csv --gpu a40 --output x.toml --precision fp32 --saturation tanh --generations 1 --json
calibrate rows.csv --gpu a40 --output x.toml --population 9 --polish 1 --kicks 1 --start y.toml --plain
calibrate rows.csv --gpu a40 --output x.toml --workers 1 --seed 1 --checkpoint z
calibrate rows.csv --gpu a40 --output x.toml --method transfer --prior y.toml --config energy.toml""",
    "simulation": """simulate --list
simulate budget-day --workload w.csv --policies fcfs --policy-file p.py --seeds 2 --sweep a=1,2 --jobs 1
simulate budget-day --slurm --part 1/2 --out results --format csv --html x.html --plots p --json
simulate budget-day --max-runs 9
study baseline s2 --jobs j.csv --column submit_s=arrived --energy e.csv --seed 1 --json
study characterise s2 --curves c.json --sweep a/b=s.json --budget 5 --classes 3 --json --config energy.toml
study characterise s2 --run --script a/b=s.sh --budget 5 --gpu-cap 200 --cap 500 --cpu-freq 2000
study characterise s2 --run --script a/b=s.sh --budget 5 --gpu-clock 1200 --power-profile MAX_Q --policy edp
study model s2 --nodes a=2 --held-out-days 7 --max-error energy_kwh=5 --accept-error --json
study baseline s2 -S now-9days -E now --config energy.toml
study choose s --alternative a:off=yes --only --seeds 2 --processes 1 --json
study choose s --slack-share 0.3 --slack-hours 8
study deploy s --stage all --config c --alternative a --design switchback --days 4 --period-days 1 --seed 1
study deploy s --stage all --design switchback --first-day 2026-12-01 --skip-stages
study deploy s --stage all --apply-command true --yes --json
study deploy s --stage partition --partition gpu --dry-run
study deploy s --tick --at 2026-12-01
study deploy s --undo --reason x
study validate s --jobs j.csv --column submit_s=a --energy e.csv --washout 4 --no-undo --seed 1 --json
study validate s -S now-9days -E now --config energy.toml
workload w.csv --units 4 --nodes 2 --format csv --json
workload --scenario replay""",
}
NO_DAEMON = """
diagnose 11 --submit job.sh
diagnose 11 --apply --permit workers=0..16
diagnose --permit workers=0..16
diagnose 11 --undo
top --once --ascii --interval 1 --config energy.toml
top --json
spool list --json --config energy.toml
db check --content --json --database /nonexistent/senergy.db --config energy.toml
db check --backup energy.toml
db backup b.gz --copy --force --database /nonexistent/senergy.db
db restore energy.toml --force --database new.db
db recover missing.db new.db --json
db upgrade --backup b.gz --dry-run --database /nonexistent/senergy.db
db prune traces --before now --cluster c --dry-run --database /nonexistent/senergy.db
db export jobs --format csv -o j.csv --since now-1days --until now --cluster c --force --database /nonexistent
grid fetch --json
study report s1 -o out --json
quota set physics 5kWh --user bob --period month --warn 80 --hold 100 --reason x
quota set physics 5kWh --start now --end now+1days
quota remove physics --user bob --resource cost --period year
budget set site 5kW --until now+2hours --reason x
budget set site --configured
where script.sh 1 --sbatch=-N2 --policy home --data 5GB --config energy.toml
where --clusters cluster --json script.sh
where --submit --clusters nowhere script.sh
tune forget --all
tune pin bert-base --gpu-cap 250 --gpu-clock 1200 --power-profile MAX_Q --package-cap 150 --cpu-freq 2400
tune pin bert-base --untuned
tune unpin bert-base
tune characterise -w n1 --gpu --time 5 --classes compute --kernel compute=x --dir c --restart --gpu-cap 300
tune characterise -w n1 --cap 500
tune characterise -w n1 --policy powersave
template render gpu --best edp --slowdown much --gpu a40 --set command=true
template render pytorch-ddp --best edp --sweep energy.toml --set script=train.py
progress 1 --total 5 --strict --config energy.toml
progress --json --strict
sweep script.sh --factors missing.toml --restart --plots p
sweep script.sh --cancel
doctor --quiet
doctor --json --config energy.toml
setup node --dry-run --slurm-conf /nonexistent/slurm.conf --library /nonexistent
setup login --yes --json --slurm-prefix /nonexistent --config energy.toml --no-doctor
setup controller --dry-run --contain --database /nonexistent --slurm-prefix /nonexistent
build-plugins --slurm-source /nonexistent --output out --cache cache --json
build-plugins --slurm-prefix /nonexistent
build-plugins --only energy --conf /nonexistent/slurm.conf --enable
build-plugins --disable --conf /nonexistent/slurm.conf
build-plugins --check --conf /nonexistent/slurm.conf
build-plugins --remove --conf /nonexistent/slurm.conf
build-plugins --update
acct --array -x 1 -M c -L -C f --expand-patterns --federation -F x -g g --local -I 1 -i 1 -q q -R r
acct -K 1 -k 1 -T --use-local-uid -W w --whole-hetjob
acct --autocomplete x
acct -B
acct -c
acct --env-vars
acct -f x
acct --helpreason
acct --helpstate
"""
ABSENT = ("lab",)
"""Commands that are missing in the environment."""


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line]


COMMAND_LINES = {
    "works": lines(WORKS),
    "no daemon": lines(NO_DAEMON),
    **{extra: lines(text) for extra, text in NEEDS.items()},
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_install.create(tmp_path_factory.mktemp("base") / "venv")


@pytest.fixture(scope="module")
def outcomes(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    directory = tmp_path_factory.mktemp("commands")
    (directory / "objective.toml").write_text("[[target]]\n")
    (directory / "script.sh").write_text("#!/bin/sh\n#SBATCH -N 1 -t 10\ntrue\n")
    (directory / "profile.json").write_text('[{"ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]')
    flat = [command for commands in COMMAND_LINES.values() for command in commands]
    found = iter(base_install.run_commands(python, directory, flat, ANSWERS))
    return {name: [next(found) for _ in commands] for name, commands in COMMAND_LINES.items()}


def test_the_environment_has_no_extra(python: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {EXTRAS} if u.find_spec(n)])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_commands_work_without_any_extra(outcomes: dict[str, list[Outcome]]) -> None:
    for command, outcome in zip(COMMAND_LINES["works"], outcomes["works"], strict=True):
        assert "Traceback" not in outcome.err, command
        assert outcome.code == 0, (command, outcome.err)
        assert outcome.out or {"-o", "--html", "--quiet", "--svg"} & {*command}, command


@pytest.mark.parametrize("extra", NEEDS)
def test_a_command_that_needs_an_extra_names_it_in_one_line(
    outcomes: dict[str, list[Outcome]], extra: str
) -> None:
    for command, outcome in zip(COMMAND_LINES[extra], outcomes[extra], strict=True):
        assert re.fullmatch(rf"senergy: error: [^\n]*slurm-energy\[{extra}\]'\n", outcome.err), command
        assert (outcome.code, outcome.out) == (4, ""), command


def test_missing_daemons_and_sources_are_one_line_each(outcomes: dict[str, list[Outcome]]) -> None:
    for command, outcome in zip(COMMAND_LINES["no daemon"], outcomes["no daemon"], strict=True):
        assert "Traceback" not in outcome.err, command
        assert outcome.code in (0, 1, 2, 4), command
        if command[0] != "doctor" and "--update" not in command:  # no plugin is in use here
            # build-plugins first prints which Slurm it uses, and then an error for each plugin.
            assert re.fullmatch(r"(Slurm [^\n]*\n)?(senergy: error: [^\n]*\n)+", outcome.err), command


def test_quantiles_and_figures_work_without_numpy(outcomes: dict[str, list[Outcome]]) -> None:
    place = next(i for i, c in enumerate(COMMAND_LINES["works"]) if c[0] == "experiment" and "--json" in c)
    total = json.loads(outcomes["works"][place].out)["total"]
    assert total["p95_jct_s"] is not None
    assert total["jain_jct"] == 1.0


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from options(child)
        elif action.option_strings and "--help" not in action.option_strings:
            yield tuple(action.option_strings)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ABSENT])
def test_every_option_is_covered(command: str) -> None:
    words = {
        word.partition("=")[0]
        for commands in COMMAND_LINES.values()
        for line in commands
        if line[0] == command
        for word in line[1:]
    }
    assert words, f"{command} is tried nowhere"
    words.add("--color")  # an option of all commands
    assert [names for names in options(parser_of(command)) if not words & {*names}] == []
