"""Carbon intensity and price of electricity in senergyctld, and the quotas that count by them."""
