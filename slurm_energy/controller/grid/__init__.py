"""Carbon intensity and price of electricity in senergyctld.

The package also contains the quotas of energy, emissions and cost.
"""
