"""Edit of plugstack.conf: one line that includes the lines of slurm-energy.

All functions are pure.
"""

from __future__ import annotations

from slurm_energy.setup.hunk import NOTE, Hunk


def add_include(text: str, pattern: str) -> Hunk | None:
    """Return the change that appends an `include` line to plugstack.conf.

    None means that the file already contains this line. The line always ends with a line feed, because Slurm
    does not accept a carriage return at the end of this line.

    Args:
        text: text of plugstack.conf.
        pattern: absolute path, or glob pattern, of the files to include.
    """
    for line in text.split("\n"):
        words = line.partition("#")[0].split()
        if words[:1] == ["include"] and words[1:2] == [pattern]:
            return None
    lines = f"# {NOTE}\ninclude {pattern}\n"
    return Hunk(len(text), "", lines, bool(text) and not text.endswith("\n"))
