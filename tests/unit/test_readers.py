"""Tests that the code reads every configuration key, command-line option, flag and record key.

A key or option that no code reads is accepted and has no effect. This happened with
--energy-slowdown.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_examples as examples
from report_examples import record, usages

import slurm_energy
import slurm_energy_lab.cli
from slurm_energy.agent import main as agent_main
from slurm_energy.cli import reference
from slurm_energy.cli.subcommands import BUILT_IN
from slurm_energy.config.policy_tables import EdpEntry, SitePolicy
from slurm_energy.config.schema import SECTIONS, Config
from slurm_energy.controller import main as controller_main
from slurm_energy.garbage_collection import paused_collection
from slurm_energy.policies.flags import FLAGS, PolicyRequest
from slurm_energy.records import EnergyRecord
from slurm_energy.reports.acct.fields import FIELDS
from slurm_energy.slurm.sacct_options import ROWS, options_with
from slurm_energy.tuning.sweep.factors import KNOBS

pytestmark = pytest.mark.slow

PACKAGE = Path(slurm_energy.__file__).parent
# What checks or prints a key gives it no effect.
NO_READERS = ("config/loader", "config/findings", "config/schema_document", "validation", "cli/config.py")
TABLES: dict[str, type] = {**SECTIONS, "policies": SitePolicy, "edp": EdpEntry}


@functools.cache
def modules() -> dict[str, ast.Module]:
    found = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    lab = Path(slurm_energy_lab.cli.__file__).parent
    found |= {f"slurm_energy_lab/{path.name}": path for path in lab.glob("*.py")}
    with paused_collection():  # collections that visit the growing trees take four fifths of the time
        return {name: ast.parse(path.read_text()) for name, path in found.items()}


def dotted(node: ast.expr) -> str:
    """Return the source text of an expression, such as `a.b.c`.

    Names and attributes are converted directly, because `ast.unparse` is slow.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ast.unparse(node)


class Reads(ast.NodeVisitor):
    """Syntax visitor that collects the configuration keys that a module reads, with their sections.

    The visitor must recognize the expressions that stand for a section of the configuration. An expression
    is a section if it ends in `.SECTION`. A name is a section in three cases:

    - It was annotated with the class of the section.
    - It was assigned from a section.
    - It was assigned from a function whose return annotation is the class of the section.
    """

    def __init__(self, returns: dict[str, str]) -> None:
        self.returns = returns
        self.names: dict[str, str] = {}
        self.found: set[tuple[str, str]] = set()

    def section(self, node: ast.expr | None) -> str | None:
        if isinstance(node, ast.Attribute) and node.attr == "accepted_bounds":
            return "bounds"
        if isinstance(node, ast.Attribute) and node.attr in SECTIONS:
            return node.attr
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self.names.get(dotted(node))
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
            if called == "get" and "policies" in dotted(node.func):
                return "policies"
            return self.returns.get(called)
        if isinstance(node, ast.IfExp):
            return self.section(node.body) or self.section(node.orelse)
        return None

    def name(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=True):
                self.name(one, its)
        elif section := self.section(value):
            self.names[dotted(target)] = section

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit a class of the source code.

        If the class is a section of the configuration, `self` means this section inside the class.
        """
        section = next((name for name, cls in TABLES.items() if cls.__name__ == node.name), None)
        if section:
            self.names["self"] = section
        self.generic_visit(node)
        self.names.pop("self", None)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.name(target, node.value)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        if node.annotation is not None and (section := annotated(node.annotation)):
            self.names[node.arg] = section

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if section := annotated(node.annotation):
            self.names[ast.unparse(node.target)] = self.names[f"self.{ast.unparse(node.target)}"] = section
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.comprehension) -> None:
        text = ast.unparse(node.iter)
        section = "edp" if re.search(r"\.edp\b|_entries\(|\bentries\b", text) else None
        section = "policies" if "policies" in text and "config" in text else section
        if section:
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    self.names[name.id] = section
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit_For(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and (section := self.section(node.value)):
            self.found.add((section, node.attr))
        self.generic_visit(node)


def annotated(node: ast.expr) -> str | None:
    text = ast.unparse(node)
    return next((name for name, cls in TABLES.items() if re.search(rf"\b{cls.__name__}\b", text)), None)


@functools.cache
def keys_read() -> set[tuple[str, str]]:
    readers = {name: tree for name, tree in modules().items() if not name.startswith(NO_READERS)}
    returns = {
        node.name: section
        for tree in readers.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.returns and (section := annotated(node.returns))
    }
    found: set[tuple[str, str]] = set()
    for tree in readers.values():
        # Twice: comprehensions are written before the names in them are known.
        reads = Reads(returns)
        reads.visit(tree)
        reads.visit(tree)
        found |= reads.found
    return found


@pytest.mark.parametrize(
    ("section", "key"),
    [(name, field.name) for name, cls in TABLES.items() for field in dataclasses.fields(cls)],
)
def test_every_configuration_key_has_a_reader(section: str, key: str) -> None:
    if section == "bounds":  # `getattr(config.bounds, field.name)` writes them into the policy file
        return
    if (section, key) == (
        "cluster",
        "release",
    ):  # read from the file before its other keys: config/release.py
        return
    assert (section, key) in keys_read(), f"{section}.{key} is accepted and has no effect"


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(SECTIONS["bounds"])])
def test_every_bound_is_the_bound_of_a_flag(key: str) -> None:
    """For every key in the configuration section `bounds`, there is a job flag that it bounds.

    The test checks that Python, C and Lua code read every key. A bound that no flag obeys would have no
    effect. C and Lua code read the bounds from the policy file.
    """
    assert ("bounds", key) in keys_read()
    for source in ("spank/flag_numbers.c", "prolog_epilog/senergy_submit.lua"):
        assert f'"{key}"' in (PACKAGE.parent / source).read_text()


def test_a_key_that_nothing_reads_is_found() -> None:
    reads = Reads({})
    reads.visit(
        ast.parse("def f(a: AgentConfig, c):\n    p = c.priority\n    a.socket; p.mode; c.cluster.name")
    )
    assert reads.found == {("agent", "socket"), ("priority", "mode"), ("cluster", "name")}
    assert all(field.name for field in dataclasses.fields(Config))


# Options


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield action
            for inner in action.choices.values():
                yield from actions(inner)
        elif not isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            yield action


def attributes_of_arguments(names: set[str]) -> set[str]:
    """Return the names of the command-line arguments that the code of some modules reads.

    The function finds reads by attribute, by `getattr`, by `vars` and in loops.
    """
    found = set()
    for name in names:
        for node in ast.walk(modules()[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if ast.unparse(node.value) in ("args", "arguments", "self.args", "self._args"):
                    found.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "vars"):
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
        found |= looped_options(modules()[name])
    return found


def looped_options(tree: ast.Module) -> set[str]:
    """Return the names of command-line options that a module reads in a loop over a list of names.

    A test of the readers of options needs these names, because they do not appear as attributes in the
    module's code. The loop is recognised by `getattr(args, name.replace(...))`. For a module without this
    expression, the result is empty.
    """
    if "getattr(args, name.replace" not in ast.unparse(tree):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.For | ast.comprehension):
            continue
        if isinstance(node.iter, ast.Tuple):
            names |= {str(item.value) for item in node.iter.elts if isinstance(item, ast.Constant)}
        elif isinstance(node.iter, ast.Name) and node.iter.id == "KNOBS":
            names |= set(KNOBS)
    return {name.replace("-", "_") for name in names}


def with_imports(name: str) -> set[str]:
    """Return a command-line module and all command-line modules that it imports, also indirectly."""
    wanted, found = [name], set()
    while wanted:
        one = wanted.pop()
        if one in found or one not in modules():
            continue
        found.add(one)
        for node in ast.walk(modules()[one]):
            if isinstance(node, ast.ImportFrom) and node.module == "slurm_energy_lab":
                wanted += [f"slurm_energy_lab/{alias.name}.py" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slurm_energy.cli"):
                tail = (node.module or "").removeprefix("slurm_energy.cli").lstrip(".")
                wanted += [f"cli/{tail}.py"] if tail else [f"cli/{alias.name}.py" for alias in node.names]
    return found


@pytest.mark.parametrize("command", reference.COMMANDS)
def test_every_option_of_a_command_has_a_reader(command: str) -> None:
    path = f"cli/{command.replace('-', '_')}.py" if command in BUILT_IN else f"slurm_energy_{command}/cli.py"
    read = attributes_of_arguments(with_imports(path))
    if command == "acct":  # test_sacct.py passes each of them
        read |= {option.key for option in options_with(ROWS)}
    unread = {
        action.dest
        for action in actions(reference.parser_of(command))
        if action.dest not in (argparse.SUPPRESS, *read)
    }
    assert not unread, f"senergy {command} accepts these and does nothing with them"


@pytest.mark.parametrize("module", [agent_main, controller_main])
def test_every_option_of_a_daemon_has_a_reader(module: object) -> None:
    name = str(Path(module.__file__).relative_to(PACKAGE))  # type: ignore[attr-defined]
    read = attributes_of_arguments({name})
    parser = module.argument_parser()  # type: ignore[attr-defined]
    assert not {action.dest for action in actions(parser)} - read


# Flags


_QUEUE = ("priority/", "controller/deferral")


def test_every_flag_has_an_effect() -> None:
    """Each option `--energy-...` of a job is used somewhere in the code.

    Either the option is part of the request from which a job is planned, or the code that orders the queue,
    defers jobs or samples signals reads the option.
    """
    planning = ast.unparse(modules()["policies/plan.py"]) + ast.unparse(modules()["agent/jobs/planner.py"])
    sources = (ast.unparse(tree) for name, tree in modules().items() if name.startswith(_QUEUE))
    queue = "".join(sources)
    keys = {
        "ENERGY_CAP": "cap_watts",
        "ENERGY_GPU_CAP": "gpu_cap_watts",
        "ENERGY_SLOWDOWN": "slowdown_limit",
        "ENERGY_TUNING": "tuning_mode",
        "ENERGY_CPU_FREQ": "cpu_max_mhz",
        "ENERGY_GPU_CLOCK": "gpu_clock_mhz",
        "ENERGY_POWER_PROFILE": "gpu_power_profile",
    }
    for variable, flag in FLAGS.items():
        name = keys.get(variable, variable.removeprefix("ENERGY_").lower())
        planned = re.search(rf"\b(request|asked|found)\.{name}\b", planning)
        sampled = f"requested.get('{name}'" in ast.unparse(modules()["agent/signals/sampling.py"])
        read = (f"flags[row].get('{variable}')", f"duration_column(queue, '{variable}')")
        assert planned or sampled or any(call in queue for call in read), flag


def test_every_part_of_a_request_has_a_reader() -> None:
    text = "".join(ast.unparse(tree) for name, tree in modules().items() if name != "policies/flags.py")
    for field in dataclasses.fields(PolicyRequest):
        assert re.search(rf"\b(request|asked|found)\.{field.name}\b", text), field.name


# Records and columns; the variables of templates are in test_cli_template.py


def test_every_key_of_a_record_is_written_by_the_agent_and_read() -> None:
    agent = "".join(
        ast.unparse(tree) for name, tree in modules().items() if name == "agent/jobs/job_records.py"
    )
    others = "".join(
        ast.unparse(tree)
        for name, tree in modules().items()
        if name.startswith(("reports/", "accounting/", "controller/", "priority/"))
    )
    for field in dataclasses.fields(EnergyRecord):
        if field.name == "extra":  # keys of a newer release
            continue
        assert re.search(rf"\b{field.name}=|'{field.name}': ", agent), f"nothing writes {field.name}"
        assert re.search(rf"\.{field.name}\b|'{field.name}'", others), f"nothing reads {field.name}"


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_column_of_acct_has_a_value_for_some_job(field: object) -> None:
    told = record(
        1,
        requested={"cap_watts": "300", "gpu_cap_watts": "200"},
        model="gemm",
        tag="a",
        sluid="s1",
        seconds_above_cap=1.0,
        throttled_seconds=1.0,
        budget_capped_seconds=1.0,
        components=(*examples.record(1).components, examples.component("node", 1.0)),
    )
    jobs = [examples.cpu_job(), examples.gpu_job(), [examples.answer(told, examples.job_info(1))]]
    rows = [usage for answers in jobs for usage in usages(answers)]
    assert any(field.value(row) is not None for row in rows)  # type: ignore[attr-defined]
