"""Drivers of the power hardware of a node, which measure power and energy and write hardware settings.

There is one module per hardware interface, all behind the base classes in `driver`. The drivers know nothing
of jobs and energy policies.
"""
