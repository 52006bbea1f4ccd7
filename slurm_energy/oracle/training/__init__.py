"""The analytical model of deep-learning training: time and watts of a step from profile, device and settings.

Needs numpy. No files are read here and nothing is fitted.
"""
