"""Drivers of the power hardware of a node, which measure power and energy and write hardware settings.

Each hardware interface has a module of its own, which implements the base classes in `driver`. The drivers
know nothing of jobs and energy policies.
"""
