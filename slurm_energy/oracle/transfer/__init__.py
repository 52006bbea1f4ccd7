"""Predictions for kinds of device with few measurements or none.

The training model with default parameters has a few quantities per workload and batch that differ between
devices: the latent quantities (`prior.LATENTS`). The prior consists of the expected values of these
quantities, which are learned from other kinds of device. A Gaussian process corrects the expected values by
the measurements on the device to predict.

The sub-package needs numpy. It reads no files.
"""
