"""Simulation of some weeks at a small site, where the true effect of each setting is known.

The simulation is event by event on a virtual clock.

Four emulated nodes run synthetic jobs. Speed and power come from the node model in its steady state. The
site writes the data that the product would read: rows of accounting and hourly energy of the nodes, both
with measurement errors. The effect of a setting is known exactly, because the same jobs also run without the
setting.
"""
