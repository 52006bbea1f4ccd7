"""The analytical model of training: seconds and watts of a training step, from profile, device and settings.

It needs numpy. It reads no files and fits no parameters.
"""
