"""A stand-in for munge that protects nothing: a credential is the uid and the payload, in base64."""

from __future__ import annotations

import base64

import pytest

from slurm_energy.errors import ForbiddenError
from slurm_energy.protocol.request_proof import request_payload
from slurm_energy.slurm import munge

CONTROLLER = 64005  # makes what this process signs


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        munge, "open_credential", lambda text, socket=None: munge.Credential(*decode(text, socket))
    )
    monkeypatch.setattr(munge, "encode", lambda payload, _socket=None: credential(CONTROLLER, payload))


def credential(uid: int, payload: bytes) -> str:
    return base64.b64encode(f"{uid}:".encode() + payload).decode()


def decode(text: str, _socket: object) -> tuple[bytes, int, int]:
    try:
        uid, _, payload = base64.b64decode(text, validate=True).partition(b":")
        return payload, int(uid), int(uid)
    except ValueError:
        raise ForbiddenError("munge: credential refused", "Replayed credential") from None


def signed(uid: int, method: str, target: str, body: bytes = b"") -> dict[str, str]:
    """Return the HTTP header that authenticates a request of user `uid` with a munge credential."""
    return {"Authorization": f"MUNGE {credential(uid, request_payload(method, target, body))}"}
