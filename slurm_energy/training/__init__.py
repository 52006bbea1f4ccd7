"""Training programs that use unlike nodes well. No other package of the suite imports this one.

PyTorch is imported only by the functions that train.
"""
