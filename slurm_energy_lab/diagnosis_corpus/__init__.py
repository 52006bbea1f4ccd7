"""Synthetic jobs with one planted cause of waste each, and healthy jobs, to measure the rules of diagnosis.

The jobs come from a model of a training loop and of a few other programs. The model knows physical causes
(storage bandwidth, loader processes, batch size, clocks), not the thresholds of the rules.
"""
