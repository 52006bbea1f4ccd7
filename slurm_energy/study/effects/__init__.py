"""Measurement of the effect of a deployment.

The package contains the estimators of the effect, the placebo checks and the validation.
"""
