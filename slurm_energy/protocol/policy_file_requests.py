"""Request for the policy file. Hosts without senergyctld request the file and keep a copy of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.errors import UnavailableError
from slurm_energy.quantities import is_number

POLICY_FILE_PATH: Final = "/v1/policies/file"
FIRST_LINE: Final = "senergy-policies 1"
MAX_BYTES: Final = 64 * 1024
"""Maximum size of a policy file, as in spank/policies.h."""
MAX_RESPONSE_BYTES: Final = 512 * 1024
"""Maximum size of the response. JSON may encode one byte of the text as six bytes."""
MAX_TEXT_BYTES: Final = MAX_BYTES - 256
"""Maximum size of a text that is copied. A copy contains two more lines."""


@dataclass(frozen=True, slots=True)
class PublishedPolicies:
    """The policy file as senergyctld publishes it.

    Attributes:
        text: text of the file.
        issued: Unix time since which senergyctld has published this text.
    """

    text: str
    issued: float

    @property
    def digest(self) -> str:
        """Hash of the published policy text.

        An agent keeps a copy of the policy file. It compares this hash with that of its copy, to check that
        the copy is current.
        """
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the published policy file as the JSON response to `GET /v1/policies/file`."""
        return {"text": self.text, "issued": self.issued}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PublishedPolicies:
        """Read a response of senergyctld.

        Raises:
            UnavailableError: the response does not contain a policy file that the agents and CLI would
                accept.
        """
        text, issued = data.get("text"), data.get("issued")
        if not isinstance(text, str) or not is_number(issued) or not 0 <= float(str(issued)) < math.inf:
            raise UnavailableError(
                "policy file", "the response has no text or no time", "upgrade senergyctld"
            )
        if not text.startswith(f"{FIRST_LINE}\n") or not text.endswith("\n"):
            raise UnavailableError("policy file", f"the text does not begin with '{FIRST_LINE}'")
        if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
            raise UnavailableError("policy file", f"longer than {MAX_TEXT_BYTES} bytes", "use shorter lists")
        if not all(character.isprintable() or character == "\n" for character in text):
            raise UnavailableError("policy file", "the text has control characters")
        return cls(text, float(str(issued)))
