"""Prediction of training jobs on kinds of device with few measurements or none.

The training model describes each workload and batch by a few quantities that differ between devices. They
are called latent quantities (`prior.LATENTS`). The prior gives an expected value for each latent quantity.
It is learned from measurements on other kinds of device. A Gaussian process then corrects the expected
values with the few measurements on the device to predict.

The sub-package needs numpy. It reads no files.
"""
