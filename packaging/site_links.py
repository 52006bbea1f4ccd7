"""Hook of MkDocs: converts what a web host of git repositories understands but MkDocs does not.

- Links to files outside docs/: such links work on the host of the repository. On the
  documentation site, the hook replaces them by the path of the file. If $REPOSITORY_URL is set, it
  replaces them by a link below this URL, e.g.
  https://forge.example/site/slurm-energy/src/branch/main. A link to a missing file is an error.
- Words after the language of a code block, such as `sh fails`: these words are for the tests
  of the page. The hook leaves them out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<target>(?:\.\./)+[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^(?P<start>\s*```\w+)[ \t]+[^`\n]+$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page with its links to files outside docs/ replaced."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_path).parent

    def outside(match: re.Match[str]) -> str:
        path = (folder / match["target"]).resolve()
        if path.is_relative_to(docs):
            return match[0]
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_path}: {match['target']} does not exist")
        name = path.relative_to(ROOT)
        if url := os.environ.get("REPOSITORY_URL"):
            return f"[{match['text']}]({url.rstrip('/')}/{name}{match['anchor'] or ''})"
        return match["text"] if str(name) in match["text"] else f"{match['text']} (`{name}`)"

    return _LINK.sub(outside, _FENCE.sub(r"\g<start>", markdown))
