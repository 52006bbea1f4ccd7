"""Carbon intensity and price of electricity over time, and the emissions and cost of energy.

The package accesses neither files nor the network.
"""
