"""Drivers of the power hardware of a node, which measure power and energy and write settings.

There is one module per hardware interface, all behind the base classes in `driver`. Nothing here knows of
jobs or policies.
"""
