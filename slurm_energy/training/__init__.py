"""Data-parallel training on nodes of unequal speed. No other package of the suite imports this package.

PyTorch is imported only by the functions that train.
"""
