"""Rendering of HTML pages. All templates use the same surrounding page.

A page is one file without external resources. The content security policy of the page permits only the
script of this package, which it identifies by a hash. A script injected through text from a user therefore
does not run.
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
        template: name of a template in this package. It extends the common frame of all pages.
        context: variables of the template, including `title` and `subtitle`.
        remarks: remarks at the top of the page, one list item each.
        now: current time for the footer; None omits the date.
    """
    script = _script()
    frame = {
        "version": __version__,
        "created": now.strftime("%Y-%m-%d %H:%M") if now else "",
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
