"""Training programs that make good use of unlike nodes. No other package of the suite imports this package.

PyTorch is imported only by the functions that train.
"""
