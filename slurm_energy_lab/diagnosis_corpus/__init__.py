"""Synthetic jobs with one planted cause of waste each, and healthy jobs, for testing the diagnosis.

Models of a training loop and of a few other programs generate the jobs. The models contain physical causes
(storage bandwidth, loader processes, batch size, clocks), but not the thresholds of the diagnosis rules.
"""
