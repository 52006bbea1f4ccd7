"""Carbon intensity and price of electricity in senergyctld, and quotas of energy, emissions and cost."""
