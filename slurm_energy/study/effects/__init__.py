"""Effect of a deployment: estimators, placebo checks and the validation."""
