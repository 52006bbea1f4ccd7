"""Output of `senergy acct` as one JSON or YAML document (options `--json` and `--yaml`)."""

from __future__ import annotations

import argparse
from typing import Any

from slurm_energy.cli import acct_options, acct_query, connection
from slurm_energy.cli.output import emit_json, emit_verbatim, note
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.reports.acct import acct_json
from slurm_energy.reports.acct.acct_fields import rows_of_records
from slurm_energy.reports.acct.rows import joined
from slurm_energy.reports.acct.yaml_text import yaml_lines
from slurm_energy.slurm import sacct
from slurm_energy.slurm.release import Release

_OPTIONAL_PARSER = (23, 11)
"""First release of Slurm in which --json and --yaml have a value."""
_WITHOUT_PARSER = "sacct cannot write JSON here: the document is built from its rows"


def print_document(args: argparse.Namespace) -> None:
    """Print the selected jobs as one JSON or YAML document."""
    document = _document(args)
    if args.json is not None:
        emit_json(document)
    else:
        emit_verbatim(yaml_lines(document))


def _document(args: argparse.Namespace) -> dict[str, Any]:
    release = acct_query.installed_release()
    if release is None:
        return _of_records(args, "sacct is not installed here")
    parser = _parser(args, release)
    arguments = acct_options.sacct_arguments(args, release)
    try:
        return _of_sacct(args, arguments, parser)
    except sacct.NoAccountingError as error:
        return _of_records(args, error.why)
    except sacct.NoDataParserError:
        return _of_rows(args, arguments)
    except UnavailableError as error:
        if error.what != "sacct":
            raise
        note(f"{error}; the jobs are those of energy records")
        return _of_records(args, error.why)


def _parser(args: argparse.Namespace, release: Release) -> str:
    parser = str((args.yaml if args.json is None else args.json) or "")
    if parser and release < _OPTIONAL_PARSER:
        raise UsageError("--json", f"Slurm has data parsers from 23.11 on; this is {release}")
    return parser


def _of_sacct(args: argparse.Namespace, arguments: list[str], parser: str) -> dict[str, Any]:
    document = sacct.read_document(arguments, parser)
    cells = list(acct_json.job_cells(document["jobs"]))
    client = connection.connect(args)
    usages, visible = acct_query.read_energy(args, client, cells)
    rows = acct_query.with_all_values(joined(cells, usages, visible), client)
    acct_json.add_energy(document, rows, visible.scope, acct_query.note_hidden(rows, visible))
    return document


def _of_rows(args: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    cells = sacct.read_rows(arguments, acct_json.BUILT_FIELDS)
    client = connection.connect(args)
    usages, visible = acct_query.read_energy(args, client, cells)
    rows = acct_query.with_all_values(joined(cells, usages, visible), client)
    notes = [_WITHOUT_PARSER, *acct_query.note_hidden(rows, visible)]
    return acct_json.built_document(rows, visible.scope, notes)


def _of_records(args: argparse.Namespace, why: str) -> dict[str, Any]:
    client = connection.connect(args)
    jobs, answer = acct_query.jobs_of_records(args, client, why)
    rows = acct_query.with_all_values(rows_of_records(jobs), client)
    notes = [f"without Slurm's accounting ({why}): only finished jobs with energy records, and running jobs"]
    return acct_json.built_document(rows, str(answer.get("scope", "all")), notes)
