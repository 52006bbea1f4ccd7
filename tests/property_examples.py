"""Settings of the test library Hypothesis with a given number of examples per test.

Tests use this module if they need a number other than the default of the Hypothesis profile.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_PROFILE_EXAMPLES = 100
_MIN_EXAMPLES = 5


def examples(count: int, **options: Any) -> settings:
    """Return settings of Hypothesis that run `count` examples per test in `make test`.

    In `make check`, each test runs a quarter of these examples.
    """
    share = settings.default.max_examples / _PROFILE_EXAMPLES
    return settings(max_examples=max(round(count * share), _MIN_EXAMPLES), deadline=None, **options)
