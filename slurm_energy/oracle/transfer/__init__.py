"""Prediction of training jobs on kinds of device with few measurements or none.

The training model describes each workload and batch by a few quantities that differ between devices.
These quantities are called latent (`prior.LATENTS`). The prior gives an expected value for each
latent quantity. The prior is learned from measurements on other kinds of device. If there are
measurements on the device to predict, a Gaussian process corrects the expected values.

The sub-package needs numpy. It reads no files.
"""
