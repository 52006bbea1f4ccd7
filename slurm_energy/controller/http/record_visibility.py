"""Restriction of record selections and of the status page to data that the caller may see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slurm_energy.accounting.records.record_selection import RecordSelection
from slurm_energy.controller.http.identity import Caller
from slurm_energy.errors import ForbiddenError
from slurm_energy.user_lookup import uid_of


def restricted_selection(caller: Caller, selection: RecordSelection) -> RecordSelection:
    """Return a copy of a selection that is restricted to the records that the caller may see.

    The copy has uids instead of user names. The lookup of the uids may query a directory service.

    Raises:
        ForbiddenError: the selection names other users.
    """
    if (visible := caller.rights.visibility) is None:
        return _with_uids(selection)
    if visible.accounts:
        return dataclasses.replace(_with_uids(selection), visible=visible)
    own = [name for name in selection.users if uid_of(name) == caller.uid]
    others = [name for name in selection.users if name not in own]
    others += [str(uid) for uid in selection.uids if uid != caller.uid]
    if others:
        raise ForbiddenError(
            f"jobs of user {others[0]}", "you may read your own", "ask an operator (controller.operators)"
        )
    return dataclasses.replace(selection, users=(), uids=(), visible=visible)


def visible_status(status: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    """Return the entries of the status page that the caller may see.

    Only operators see the use of quotas, because this entry includes the use of accounts and of other users.
    """
    quotas = status.get("quotas")
    if caller.rights.everything or not quotas:
        return status
    return {**status, "quotas": {**quotas, "over": []}}


def _with_uids(selection: RecordSelection) -> RecordSelection:
    """Return a copy of a selection of records in which uids replace the user names.

    The call may query a directory service. A name that the directory service does not know stays in the
    selection and is looked up in the records.
    """
    uids = {name: uid for name in selection.users if (uid := uid_of(name)) is not None}
    unknown = tuple(name for name in selection.users if name not in uids)
    return dataclasses.replace(selection, users=unknown, uids=(*selection.uids, *uids.values()))
