"""The HTTP header with the release of senergyctld, and advice for programs newer than senergyctld.

The header is not signed. Programs use the header only to explain errors, never to decide about data.
"""

from __future__ import annotations

import re
from typing import Final

from slurm_energy import __version__
from slurm_energy.quantities import shown

RELEASE_HEADER: Final = "Senergy-Release"
_FORM: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\b[A-Za-z0-9.+-]{0,20}")
_FIRST_WITH_HEADER: Final = "0.2"


def advice_for_older(release: str | None) -> str:
    """Return advice if senergyctld has an earlier minor release than this program, else an empty text.

    Args:
        release: value of the header; None if the response has no header, as responses of release 0.1.
    """
    own, other = _FORM.fullmatch(__version__), _FORM.fullmatch(release or "")
    if own is None or (release is not None and other is None):
        return ""
    if other is not None and (int(other[1]), int(other[2])) >= (int(own[1]), int(own[2])):
        return ""
    name = f"release {shown(release, 30)}" if release else f"a release before {_FIRST_WITH_HEADER}"
    return f"senergyctld is {name}, this program {__version__}: upgrade senergyctld"
