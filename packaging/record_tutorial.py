#!/usr/bin/env python3
"""Run the commands of a tutorial in a lab and write their output into the page.

    packaging/record_tutorial.py [PAGE]

The script takes about ten minutes. It needs root, and `senergy` on PATH. PAGE is docs/tutorial.md by
default. docs/diagnosis-tutorial.md needs a virtual environment with PyTorch and slurm_energy, which
$VIRTUAL_ENV names.

A block ```console contains commands and their output. A command begins after `$ `, and its further
lines begin with `> `. The script replaces the output. A failing command is recorded like any other.

The script starts a new lab in a temporary directory, so that its jobs have the numbers of the page.
The lab has the options of the page's first `senergy lab up`. If the lab cannot be started, the page
is not changed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
_TIMEOUT_S = 600
_UP = re.compile(r"^senergy lab up\b(.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(body: str) -> list[str]:
    """Return the commands in a console block of a tutorial page.

    A command follows `$ `. Its further lines begin with `> `. All other lines of the block are output.
    """
    found: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif line.startswith("> ") and found:
            found[-1] += f"\n{line[2:]}"
    return found


def recorded(body: str, shell: list[str], directory: Path) -> str:
    """Run the commands of a console block in a tutorial. Return the new content of the block.

    The content consists of the commands and their present output.

    Args:
        body: old content of the block.
        shell: command that starts a shell for each command.
        directory: directory in which the commands run.
    """
    lines: list[str] = []
    for command in commands(body):
        first, *more = command.split("\n")
        lines += [f"$ {first}", *(f"> {line}" for line in more)]
        print(f"$ {first}", flush=True)
        done = subprocess.run(
            [*shell, command],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        lines += [line.rstrip() for line in done.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines)


def lab_options(page: str) -> list[str]:
    """Return the options of the first `senergy lab up` of a page."""
    match = _UP.search(page)
    return shlex.split(match[1]) if match else []


def login_shell(lab: str) -> list[str]:
    """Return the command that runs a script on the login node of the lab."""
    environment = subprocess.run(
        ["senergy", "lab", "env", "--dir", lab], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return ["bash", "-c", f'{environment}\nexport COLUMNS=80\neval "$0"']


def replaced(page: str, shell: list[str], directory: Path) -> Iterator[str]:
    """Yield the text of a tutorial page in pieces, with newly recorded output of its commands."""
    end = 0
    for block in _BLOCK.finditer(page):
        yield page[end : block.start("body")]
        yield recorded(block["body"], shell, directory)
        end = block.end("body")
    yield page[end:]


def main() -> int:
    """Run the commands of a tutorial page, and write their output into the page.

    The first argument of the program names the page. By default, the page is docs/tutorial.md.
    """
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    with tempfile.TemporaryDirectory(prefix="tutorial-", dir="/var/tmp") as folder:
        lab, work = f"{folder}/lab", Path(folder) / "work"
        work.mkdir()
        old = page.read_text(encoding="utf-8")
        up = ["senergy", "lab", "up", *lab_options(old), "--dir", lab]
        subprocess.run(up, stdout=subprocess.DEVNULL, check=True)
        try:
            text = "".join(replaced(old, login_shell(lab), work))
        finally:
            subprocess.run(["senergy", "lab", "down", "--dir", lab], stdout=subprocess.DEVNULL, check=True)
        page.write_text(text.replace(shlex.quote(str(work)), "."), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
