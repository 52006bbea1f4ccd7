"""Finding the parameters of the training model from measurements. Needs numpy and scipy; slow on purpose."""
