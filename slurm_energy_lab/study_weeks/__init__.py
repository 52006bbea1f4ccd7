"""Weeks of a small site, simulated event by event on a virtual clock.

The true effect of the site's settings is known.

Four emulated nodes run synthetic jobs. Speed and power come from the node model in its steady state. The site
writes the data that the product would read: rows of accounting and hourly energy of the nodes, both with
measurement errors. The effect of a setting is known exactly, because the same jobs also run without the
setting.
"""
