"""Step 4 of a study: the digital twin, which is a simulation of the site's cluster.

The package calibrates the twin, replays measured days with it, and forecasts changes.
"""
