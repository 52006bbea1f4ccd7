"""Results that MariaDB's driver reads row by row, on connections that are lost meanwhile."""

from __future__ import annotations

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext


def end_lost_streams(engine: Engine) -> Engine:
    """Return an engine of PyMySQL whose streamed results end when their connection is lost.

    PyMySQL would read the rest of such a result whenever its cursor is closed, and fail with a traceback.
    """
    event.listen(engine, "handle_error", _end_lost_stream)
    return engine


def _end_lost_stream(context: ExceptionContext) -> None:
    cursor = getattr(context.execution_context, "cursor", None)
    result = getattr(cursor, "_result", None)
    if context.is_disconnect and result is not None:
        result.unbuffered_active = False
