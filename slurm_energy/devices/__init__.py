"""Hardware interfaces: what a node can measure and what can be set on it, and the journal of settings.

One file per interface, all behind `interface.py`. Nothing here knows of jobs or policies.
"""
