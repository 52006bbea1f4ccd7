#!/usr/bin/env python3
"""Run the commands of a tutorial in a lab and write their output into the page.

    packaging/record_tutorial.py [PAGE]        as root, with `senergy` on PATH; takes about ten minutes

PAGE is docs/tutorial.md by default. docs/diagnosis-tutorial.md needs a virtual environment with PyTorch and
slurm_energy, which $VIRTUAL_ENV names.

A block ```console holds commands after `$ `, whose further lines begin with `> `, and their output, which is
replaced. The lab has the options of the page's first `senergy lab up`; it is a new one in a temporary
directory, so that its jobs have the numbers of the page. A failing command is recorded like any other. The
page stays as it is if the lab cannot be brought up.
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
    """Return the commands of a block."""
    found: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif line.startswith("> ") and found:
            found[-1] += f"\n{line[2:]}"
    return found


def recorded(body: str, shell: list[str], directory: Path) -> str:
    """Run the commands of a block and return the block with their output."""
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
    """Yield the parts of the page with new output."""
    end = 0
    for block in _BLOCK.finditer(page):
        yield page[end : block.start("body")]
        yield recorded(block["body"], shell, directory)
        end = block.end("body")
    yield page[end:]


def main() -> int:
    """Record the page that the argument names."""
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
