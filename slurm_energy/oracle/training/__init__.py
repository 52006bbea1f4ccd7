"""The analytical model of training: seconds and watts of a training step, from profile, device and settings.

The sub-package needs numpy. It reads no files and fits no parameters.
"""
