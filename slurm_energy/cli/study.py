"""`senergy study`: an energy study of a cluster in six steps.

A study begins with an objective and ends with a validated saving.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from slurm_energy.cli import (
    study_baseline,
    study_characterise,
    study_choose,
    study_deploy,
    study_init,
    study_model,
    study_report,
    study_status,
    study_validate,
)
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EnergyError, UnavailableError, install_extra

HELP = "an energy study of the cluster in six steps, from an objective to a validated saving"

EPILOG = """\
A study is a directory DIR with the objective, the results of each step, and hashes of all inputs. Each step
is one command, in this order; an interrupted step continues when it is started again. A step whose inputs
have changed is stale: later steps refuse it until it has run again. Only one administrator at a time can
change a study.

init works without extras, the other steps need the extra `simulation`.

exit codes: 0 ok, 1 failure, or a limit is broken, 2 usage, or an earlier step is missing or stale,
  3 objective.toml is invalid, 4 a daemon or an extra is missing, 5 another user could have written DIR,
  6 there is no study in DIR, 7 another process uses the study

examples:
  senergy study init /srv/study
  senergy study baseline /srv/study
  senergy study baseline /srv/study --jobs jobs.csv --energy energy.csv
  senergy study characterise /srv/study --budget 48
  senergy study model /srv/study --nodes gpu=16
  senergy study choose /srv/study --alternative gentle:tuning=energy,slowdown=2
  senergy study deploy /srv/study --stage shadow
  senergy study deploy /srv/study --stage all --design switchback --days 28
  senergy study deploy /srv/study --undo
  senergy study validate /srv/study
  senergy study report /srv/study -o /srv/www/study
  senergy study status /srv/study
See docs/study.md.
"""

ACTIONS: Final[dict[str, tuple[Any, str]]] = {
    "init": (study_init, "create a study with an example of the objective"),
    "baseline": (study_baseline, "measure the present state from accounting and energy records"),
    "characterise": (study_characterise, "classify jobs, and plan the measurements that are missing"),
    "model": (study_model, "build a digital twin and check its replay of a held-out week"),
    "choose": (study_choose, "simulate alternatives on the twin, and recommend one"),
    "deploy": (study_deploy, "put the chosen alternative in force by stages, or undo this"),
    "validate": (study_validate, "effect of the deployment with intervals; a broken limit undoes it"),
    "status": (study_status, "state of each step, and which steps have to run again"),
    "report": (study_report, "report as HTML page, notebook and JSON"),
}
"""Module and help of each action by name."""


def configure(parser: CommandParser) -> None:
    """Add the actions and their options to `senergy study`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (module, text) in ACTIONS.items():
        action = actions.add_parser(name, help=text)
        action.add_argument("directory", metavar="DIR", help="directory of the study")
        module.configure(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the action of `senergy study` that the arguments name, and return the exit code.

    Raises:
        UnavailableError: a Python package that the action needs is not installed.
    """
    try:
        return int(ACTIONS[args.action][0].run(args))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numpy", "numba", "matplotlib"):
            raise
        extra = "plots" if error.name == "matplotlib" else "simulation"
        raise UnavailableError(
            f"senergy study {args.action}", f"needs {error.name}", install_extra(extra)
        ) from None
    except BrokenPipeError:
        raise  # the reader of the output has ended: the command line ends silently
    except OSError as error:
        raise EnergyError(f"senergy study {args.action}", str(error)) from None
