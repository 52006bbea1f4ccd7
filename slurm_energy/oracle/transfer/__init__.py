"""Predictions for kinds of device with few measurements or none. Needs numpy; reads no files.

The training model with default parameters has a few quantities per workload and batch that differ between
devices: the latent quantities (`prior.LATENTS`). Their expected values are learned from other kinds of
device; these are the prior. A Gaussian process corrects them by the measurements on the device itself.
"""
