"""Error handling for MariaDB when the connection is lost during a streamed result.

In a streamed result, the driver reads the rows one by one.
"""

from __future__ import annotations

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext


def end_lost_streams(engine: Engine) -> Engine:
    """Configure a PyMySQL engine so that a lost connection ends a streamed result. Return the engine.

    Without this setting, PyMySQL would try to read the rest of the streamed result when its cursor is closed,
    and would fail with a traceback.
    """
    event.listen(engine, "handle_error", _end_lost_stream)
    return engine


def _end_lost_stream(context: ExceptionContext) -> None:
    cursor = getattr(context.execution_context, "cursor", None)
    result = getattr(cursor, "_result", None)
    if context.is_disconnect and result is not None:
        result.unbuffered_active = False
