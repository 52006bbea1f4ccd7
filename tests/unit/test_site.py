"""Tests of the documentation as a web site.

They check the navigation, the links, the commands of the tutorial, and that the site loads nothing from
other hosts.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from slurm_energy.cli import reference
from slurm_energy_lab import cli as lab_cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(pages), "add the page to the navigation in mkdocs.yml"


def test_the_installation_fits_a_screen() -> None:
    page = (DOCS / "install.md").read_text()
    assert len(page.splitlines()) <= 40
    commands = [line.split("#")[0].strip() for line in page.split("```")[1].splitlines()[1:]]
    assert commands == ["apt install ./*.deb", "senergy setup controller --yes", "senergy setup node --yes"]
    for line in commands[1:]:
        _check_command(shlex.split(line))


def _check_command(words: list[str]) -> None:
    assert words[0] == "senergy"
    reference.parser_of(words[1]).parse_args(words[2:])


@pytest.mark.parametrize("name", ["tutorial.md", "diagnosis-tutorial.md"])
def test_the_commands_of_a_tutorial_exist(name: str) -> None:
    recorder = load(ROOT / "packaging/record_tutorial.py")
    page = (DOCS / name).read_text()
    commands = [
        command for block in recorder._BLOCK.finditer(page) for command in recorder.commands(block["body"])
    ]
    parts = [part.strip() for command in commands for part in re.split(r"[;\n]", command)]
    senergy = [shlex.split(part) for part in parts if part.startswith("senergy ")]
    assert len([words for words in senergy if words[1] != "lab"]) >= 5
    for words in senergy:
        if words[1] != "lab":
            _check_command(words)
    lab_command().parse_args(["up", *recorder.lab_options(page)])
    flags = {word.partition("=")[0] for command in commands for word in command.split() if "--energy" in word}
    known = set(re.findall(r"energy-[a-z-]+", (ROOT / "spank/flags.c").read_text()))
    assert {flag.removeprefix("--") for flag in flags} <= known
    assert "Traceback" not in page


def lab_command() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    lab_cli.configure(parser)
    return parser


def test_the_program_of_the_diagnosis_tutorial_is_python_with_one_line_for_the_recorder() -> None:
    recorder = load(ROOT / "packaging/record_tutorial.py")
    page = (DOCS / "diagnosis-tutorial.md").read_text()
    blocks = [recorder.commands(block["body"]) for block in recorder._BLOCK.finditer(page)]
    program = next(command for block in blocks for command in block if "> train.py" in command)
    code = program.partition("\n")[2].rpartition("\nEND")[0]
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert sum("slurm_energy.watch" in ast.unparse(call.func) for call in calls) == 1
    advised = set(re.findall(r"DataLoader\(num_workers=(\d+)\)", page))
    assert advised and set(re.findall(r"WORKERS=(\d+)", page)) <= advised


def test_the_recorder_reads_commands_with_several_lines() -> None:
    recorder = load(ROOT / "packaging/record_tutorial.py")
    assert recorder.commands("$ cat > a <<END\n> one\n> END\n$ ls\na\n") == ["cat > a <<END\none\nEND", "ls"]
    shown = recorder.recorded("$ printf 'a\\nb \\n'\nold\n$ false\n", ["sh", "-c"], Path("/"))
    assert shown == "$ printf 'a\\nb \\n'\na\nb\n$ false\n"


def rendered(text: str) -> str:
    hook = load(ROOT / "packaging/site_links.py")
    page = SimpleNamespace(file=SimpleNamespace(src_path="decisions/README.md"))
    result: str = hook.on_page_markdown(text, page=page, config=SimpleNamespace(docs_dir=str(DOCS)))
    return result


def test_links_to_files_outside_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    assert rendered("[page](../install.md#x)") == "[page](../install.md#x)"
    assert rendered("see [the list](../../setup.cfg)") == "see the list (`setup.cfg`)"
    monkeypatch.setenv("REPOSITORY_URL", "https://forge.example/src/")
    assert rendered("[a](../../setup.cfg#L1)") == "[a](https://forge.example/src/setup.cfg#L1)"
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        rendered("[a](../../no-such-file)")


def test_words_after_the_language_of_a_block_are_left_out() -> None:
    assert rendered("```sh fails\nx\n```\n") == "```sh\nx\n```\n"


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
    assert (tmp_path / "search/search_index.json").exists()
