"""Command `senergy template`: list, show and render templates of batch scripts and site files."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import best_settings, connection
from slurm_energy.cli.output import emit_fitted, emit_json, emit_verbatim, print_error
from slurm_energy.cli.output_files import write_file
from slurm_energy.errors import EXIT_OK, EnergyError, UsageError
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.templates import Template

HELP = "batch scripts and site files from templates"

EPILOG = """\
examples:
  senergy template list
  senergy template list --json                    names, keys and defaults as JSON
  senergy template show gpu                       its keys, then its text
  senergy template render gpu --set command='python train.py' --set policy=edp -o job.sh
  sbatch job.sh
  senergy template render gpu --set command='python train.py' --set model=resnet50 --gpu a100 --best edp
  senergy template render pytorch-ddp --set script=train.py --set gpus= --best edp -o train.sh
  senergy template render senergyd.service -o /etc/systemd/system/senergyd.service

--best fills in the settings that serve an objective best, and the time limit if runs of similar jobs are
known, as `senergy predict --best` names them. Values that --set gives are kept. A template such as
pytorch-ddp takes the settings from the newest saved sweep of its Python file: threads, processes and batch
size, too.

Energy flags are checked as by sbatch. Line breaks in values become blanks. Values inserted into shell code
are quoted, except values that are shell code themselves. Templates of the site are stored in the folder
`templates.folder` of the configuration (/etc/slurm/energy-templates); start from the output of `show`.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy template`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|render")
    listing = actions.add_parser("list", help="name and purpose of every template")
    show = actions.add_parser("show", help="keys and text of one template")
    show.add_argument("name", metavar="NAME")
    for action in (listing, show):
        action.add_argument("--json", action="store_true", help="print JSON")
    render = actions.add_parser("render", help="fill a template and print or write it")
    render.add_argument("name", metavar="NAME")
    render.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="value of a key; the last one counts"
    )
    render.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write to this file instead of standard output"
    )
    best_settings.add_options(render)
    render.add_argument(
        "--sweep",
        metavar="FILE",
        type=Path,
        help="with --best: state file of a sweep (default: the newest of this program in the folder)",
    )
    render.add_argument("--gpu", metavar="KIND", help="with --best: kind of the GPUs, a100")
    for action in (listing, show, render):
        connection.add_config_option(action)


def run(args: argparse.Namespace) -> int:
    """Execute an action of `senergy template` (e.g. `list`) and return the exit code."""
    from slurm_energy.cli.best_template_values import best_values
    from slurm_energy.templates import find, render

    objective = best_settings.objective_of(args) if args.action == "render" else None
    if args.action == "render" and args.sweep is not None and objective is None:
        raise UsageError("--sweep", "given without --best", "name an objective, as in --best edp")
    folder = connection.configuration(args).templates.folder
    if args.action == "list":
        return _list(folder, as_json=args.json)
    if args.action == "show" and args.json:
        emit_json(_object(find(args.name, folder)) | {"source": find(args.name, folder).source})
    elif args.action == "show":
        emit_verbatim(_description(find(args.name, folder)))
    else:
        template, given = find(args.name, folder), _settings(args.set)

        def rendered(settings: dict[str, str]) -> str:
            return render(template, settings, lambda raw: _check_energy(args, raw))

        text = rendered(given)
        if objective is not None:
            text = rendered(best_values(args, objective, template, text, given) | given)
        if args.output is None:
            emit_verbatim(text.splitlines())
        else:
            write_file(args.output, text)
    return EXIT_OK


def _list(folder: Path, *, as_json: bool) -> int:
    """Print the list of templates. An invalid template is reported on standard error and skipped."""
    from slurm_energy.templates import find, names

    template_names, code = names(folder), EXIT_OK
    templates: list[Template] = []
    for name in template_names:
        try:
            template = find(name, folder)
        except EnergyError as error:
            print_error(error)
            code = error.exit_code
            continue
        templates.append(template)
    if as_json:
        emit_json([_object(template) for template in templates])
        return code
    width = max(map(len, template_names))
    for template in templates:
        site = " (site)" if template.group == "own" else ""
        emit_fitted([f"{template.name:<{width}}  {template.summary}{site}"])
    return code


def _object(template: Template) -> dict[str, Any]:
    """Return a template as a dict for JSON. A `default` of null means that a value is required."""
    return {
        "name": template.name,
        "group": template.group,
        "summary": template.summary,
        "path": str(template.path),
        "variables": [dataclasses.asdict(variable) for variable in template.variables],
    }


def _settings(items: list[str]) -> dict[str, str]:
    values = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(f"--set: '{shown(item)}' is not a setting", todo="write --set key=value")
        values[key] = value
    return values


def _check_energy(args: argparse.Namespace, raw: dict[str, str]) -> None:
    from slurm_energy.policies import validate_flags

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = None
    validate_flags(raw, connection.configuration(args), user)


def _description(template: Template) -> list[str]:
    width = max((len(variable.name) for variable in template.variables), default=0)
    lines = [f"{template.name}: {template.summary}", ""]
    for variable in template.variables:
        default = (
            "required"
            if variable.default is None
            else f"default {variable.default!r}"
            if variable.default
            else "omitted"
        )
        lines.append(f"  {variable.name:<{width}}  {variable.doc} ({default})")
    return [*lines, "", *template.source.splitlines()]
