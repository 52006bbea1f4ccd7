"""Drivers of the power hardware of a node: what it can measure and what can be set on it.

There is one module per hardware interface, all behind the base classes in `driver`. Nothing here knows of
jobs or policies.
"""
