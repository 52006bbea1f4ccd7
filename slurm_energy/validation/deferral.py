"""Checks of the sections `deferral` and `signals`.

The policy must have the signal that it needs, and every key must have an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from slurm_energy.config.findings import Finding
from slurm_energy.errors import ConfigError, UsageError
from slurm_energy.trusted_files import read_trusted
from slurm_energy.validation.check_context import CheckContext

_SIGNALS: Final = {"cheapest": ("price",), "cleanest": ("carbon",), "cedla": ("price",)}
_CONSTANT: Final = ("constant", "yearly")
_FILES: Final = (("renewable_file", "renewable_share"), ("outside_file", "outside_celsius"))
_SUSPENSION_KEYS: Final = ("max_suspensions", "min_run_s", "min_suspension_s")
_BUILT_IN: Final = ("off", *_SIGNALS)


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about the deferral of jobs and its signals."""
    settings = context.config.deferral
    if not settings.enabled:
        for section in (context.config.deferral, context.config.signals):
            name = "deferral" if section is settings else "signals"
            for key in fields(section):
                if key.name != "policy" and context.is_set(name, key.name):
                    yield context.warning(name, key.name, "has no effect: deferral.policy is 'off'")
        return
    if not settings.suspend:
        for name in _SUSPENSION_KEYS:
            if context.is_set("deferral", name):
                yield context.warning("deferral", name, "has no effect: deferral.suspend is false")
    if settings.policy not in _BUILT_IN and context.config.priority.policy_file is None:
        why = f"'{settings.policy}' is not one of {', '.join(_BUILT_IN)}"
        yield context.error("deferral", "policy", why, "or set priority.policy_file, which may register it")
    yield from _check_signals(context)
    if settings.hold_s > settings.max_slack_s:
        why = f"is less than the {settings.hold_s:g} s by which begin times are moved"
        yield context.warning("deferral", "max_slack_s", why, "shorten deferral.slot_s and interval_s")
    yield from _check_files(context)


def _check_signals(context: CheckContext) -> Iterator[Finding]:
    policy = context.config.deferral.policy
    for section in _SIGNALS.get(policy, ()):
        provider = getattr(context.config, section).provider
        if provider == "off":
            yield context.error("deferral", "policy", f"'{policy}' needs {section}.provider")
        elif provider in _CONSTANT:
            why = f"'{policy}' defers nothing: {section}.provider is '{provider}', the same at all times"
            yield context.warning("deferral", "policy", why)


def _check_files(context: CheckContext) -> Iterator[Finding]:
    settings = context.config.signals
    files = [(key, name, getattr(settings, key)) for key, name in _FILES]
    files = [entry for entry in files if entry[2] is not None]
    if not files:
        return
    try:
        from slurm_energy.signals import SignalName
        from slurm_energy.signals.csv_files import read_signal
    except ImportError:  # without numpy no job is deferred, which the daemon reports
        return
    for key, name, path in files:
        try:
            lines = read_trusted(path).decode("utf-8-sig").splitlines(True)
            read_signal(lines, str(path), SignalName(name))
        except (UsageError, ConfigError) as error:
            yield context.error("signals", key, f"{error.what}: {error.why}".rstrip(": "), error.todo)
        except UnicodeDecodeError:
            yield context.error("signals", key, f"{path}: is not UTF-8 text")
        except OSError as error:
            yield context.error("signals", key, f"{path}: {error.strerror or error}", unavailable=True)
