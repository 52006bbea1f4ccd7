"""Predictions for kinds of device with few measurements or none. Needs numpy; reads no files.

The default training model has a few quantities per workload and batch that differ between devices: the latent
quantities (`prior.LATENTS`). Their values on other kinds of device are the prior. A Gaussian process corrects
them by the measurements.
"""
