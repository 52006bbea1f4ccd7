"""`senergy config`: check the configuration file, show the effective values, write an example."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_fitted, emit_json, emit_verbatim, note
from slurm_energy.errors import EXIT_CONFIG, EXIT_OK, EnergyError

_CONTROLLER_TIMEOUT_S: Final = 3.0

HELP = "check, show or write an example of the configuration"

EPILOG = """\
check reports all errors that would stop a daemon, and also contradictory keys, names that are unknown to
Slurm or to this host, and directories writable by others. Errors give exit code 3; warnings do not. Run it
as root on the controller. Checks that are impossible on a host are listed as not checked. Limits of budgets
are compared with the idle power that senergyctld knows, if it answers.

examples:
  senergy config check                            check /etc/slurm/energy.toml
  senergy config check new.toml                   check this file
  senergy config check --strict --json            for scripts: warnings count as errors
  senergy config show                             every key with its effective value
  senergy config show --node gpu01                values on a node, with the origin of each
  senergy config show --json                      the same for a script
  senergy config example > /etc/slurm/energy.toml a file to start from: all keys, commented out
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy config`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|show|example")
    check = actions.add_parser("check", help="list all errors in the file, by line")
    check.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    check.add_argument("--strict", action="store_true", help="exit with 3 on warnings too")
    show = actions.add_parser("show", help="print every key with its effective value")
    show.add_argument("--json", action="store_true", help="print sections, keys and values as JSON")
    show.add_argument("--node", metavar="NAME", help="values on this node, with the keys of its node types")
    for action in (check, show):
        action.add_argument(
            "file", nargs="?", type=Path, metavar="FILE", help="configuration file, instead of --config"
        )
        connection.add_config_option(action)
    example = actions.add_parser("example", help="print an example with all keys at their defaults")
    example.add_argument(
        "--reference", action="store_true", help="print the reference page (Markdown) instead"
    )


def run(args: argparse.Namespace) -> int:
    """Run the action that the user named (e.g. `check`) and return the exit code."""
    from slurm_energy.config import schema_document

    if args.action == "example":
        emit_verbatim(
            (
                schema_document.reference_page() if args.reference else schema_document.example_file()
            ).splitlines()
        )
        return EXIT_OK
    args.config = args.file or args.config
    if args.action == "check":
        return _check(args)
    return _show(args)


def _show(args: argparse.Namespace) -> int:
    """Print the effective configuration, and where each value comes from.

    The configuration is the one in the configuration file. If the user names a node, the values that
    apply to this node are printed.
    """
    from slurm_energy.config import schema_document
    from slurm_energy.config.loader import load_source
    from slurm_energy.config.node_types import types_of
    from slurm_energy.config.origins import origins

    source = load_source(args.config)
    config, places = source.config, origins(source, args.node)
    types = types_of(config.node_types, args.node) if args.node else {}
    if args.node:
        config = config.for_node(args.node)
        _note_unknown_node(args.node)
    if args.json:
        values = schema_document.plain_values(config)
        if args.node:
            named = {f"{section}.{key}": place.to_json() for (section, key), place in sorted(places.items())}
            values |= {"node": args.node, "types_of_node": list(types), "origins": named}
        emit_json(values)
        return EXIT_OK
    head = f"# In force: {config.path or 'built-in defaults, no configuration file'}"
    if args.node:
        head += f", on node {args.node} (node types: {', '.join(types) or 'none'})"
    name = config.path.name if config.path else ""
    notes = {place: origin.text(name) for place, origin in places.items()}
    emit_verbatim([head, *schema_document.example_file(config, notes).splitlines()[2:]])
    return EXIT_OK


def _note_unknown_node(node: str) -> None:
    """Print a note if slurm.conf on this host names nodes, but not `node`."""
    from slurm_energy.validation.budget_nodes import NodesOfSlurm
    from slurm_energy.validation.host import this_host

    names = NodesOfSlurm.of(this_host().slurm).names
    if names and node not in names:
        note(f"slurm.conf has no node {node}")


def _check(args: argparse.Namespace) -> int:
    """Print all errors and warnings about the configuration file; return the exit code."""
    from slurm_energy.validation import check_file

    checked = check_file(args.config)
    if checked.config.budgets and not checked.errors:
        checked = check_file(args.config, idle_watts=_idle_watts(args))
    errors, warnings = len(checked.errors), len(checked.warnings)
    name = str(checked.path or "no configuration file, built-in defaults")
    if args.json:
        findings = [finding.to_json() for finding in checked.findings]
        path = str(checked.path) if checked.path else None
        emit_json({"file": path, "errors": errors, "warnings": warnings, "findings": findings})
    else:
        emit_fitted(finding.line_with_severity for finding in checked.findings)
        emit([f"{name}: {_summary(errors, warnings)}"])
    return EXIT_CONFIG if errors or (args.strict and warnings) else EXIT_OK


def _idle_watts(args: argparse.Namespace) -> dict[tuple[str, str, str], float]:
    """Return the idle power of each budget by name and scope of the budget.

    The result is empty if senergyctld does not answer soon, or knows no budgets yet.
    """
    from slurm_energy.protocol.budget_requests import STATUS_PATH, StatusQuery

    try:
        client = connection.connect(args, total_timeout_s=_CONTROLLER_TIMEOUT_S)
        answer = client.get(STATUS_PATH, StatusQuery(plan_hours=0.0).parameters())
    except EnergyError:
        return {}
    return {
        (row["name"], row["scope"], row["scope_value"]): row["idle_watts"]
        for row in answer.get("budgets") or []
        if row.get("idle_watts") is not None
    }


def _summary(errors: int, warnings: int) -> str:
    counts = [
        f"{count} {word}" if count == 1 else f"{count} {word}s"
        for count, word in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return ", ".join(counts) or "ok"
