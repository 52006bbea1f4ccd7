"""One HTML page from a template: the frame that all pages share.

A page is one file that loads nothing: style, script, drawings and figures are inside. Its content security
policy allows just the one script of the package, by its hash, so a script that got into the page with text
from a user would not run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slurm_energy import __version__


def render(
    template: str, context: Mapping[str, Any], remarks: Sequence[str] = (), now: datetime | None = None
) -> str:
    """Return one HTML document.

    Args:
        template: name of a template of this package that extends the frame.
        context: its variables, `title` and `subtitle` among them.
        remarks: lines at the top of the page, one item each.
        now: the present, for the footer; None leaves the date out.
    """
    script = _script()
    frame = {
        "version": __version__,
        "made": now.strftime("%Y-%m-%d %H:%M") if now else "",
        "remarks": list(remarks),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    }
    return _environment().get_template(template).render(frame | dict(context))


@functools.cache
def _script() -> str:
    return (importlib.resources.files("slurm_energy.reports") / "html" / "page.js").read_text("utf-8")


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("slurm_energy.reports", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
