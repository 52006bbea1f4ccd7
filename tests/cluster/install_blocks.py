#!/usr/bin/env python3
"""Program that extracts the code blocks of docs/install-by-hand.md for install-docs.sh.

    install_blocks.py PAGE DIRECTORY NAME=VALUE...

It uses the standard library only. It writes each block to DIRECTORY as NN.ACTION. The words NAME in the text
of a block are replaced by their values. ACTION is one of these words:

- `run`: the block is a shell script that must succeed;
- `fails`: the block is a shell script that must fail;
- `file` and `append`: the block is text whose target is in NN.target.

The program prints a line `NN ACTION SECTION` for each block.
"""

import re
import sys
from pathlib import Path

_FENCE = re.compile(r"^```(?P<info>.*)$")
_ACTIONS = {"sh": "run", "sh fails": "fails"}
_TARGET = re.compile(r"\w+ (?P<action>file|append)=(?P<path>/\S+)")


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return every fenced code block of a Markdown page as (section, info string, text)."""
    found, section, info, lines = [], "", None, []
    for line in page.splitlines():
        fence = _FENCE.match(line)
        if fence and info is None:
            info, lines = fence["info"].strip(), []
        elif fence:
            found.append((section, info, "\n".join(lines) + "\n"))
            info = None
        elif info is not None:
            lines.append(line)
        elif line.startswith("## "):
            section = line[3:]
    return found


def main(page: str, directory: str, *substitutions: str) -> None:
    """Write each code block of a documentation page to a file, and print a list of the files."""
    values = dict(word.split("=", 1) for word in substitutions)
    for number, (section, info, text) in enumerate(blocks(Path(page).read_text())):
        for name, value in values.items():
            text = re.sub(rf"\b{name}\b", value, text)
        target = _TARGET.fullmatch(info)
        action = target["action"] if target else _ACTIONS.get(info)
        if action is None:
            sys.exit(
                f"{page}: block in '{section}': '{info}': write sh, sh fails, X file=PATH or X append=PATH"
            )
        path = Path(directory) / f"{number:02d}.{action}"
        path.write_text(text)
        if target:
            path.with_suffix(".target").write_text(target["path"])
        print(f"{number:02d} {action} {section}")


if __name__ == "__main__":
    main(*sys.argv[1:])
