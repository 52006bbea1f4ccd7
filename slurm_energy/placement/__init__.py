"""Choice of a cluster for each job by energy, price, carbon, data transfer and queue. Pure functions.

The simulator and `senergy where` use the same functions. The functions require numpy.
"""
