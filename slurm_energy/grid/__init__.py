"""Carbon intensity and price of electricity over time, and the footprint of energy. No files, no network."""
