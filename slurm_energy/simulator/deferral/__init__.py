"""Deferrable jobs in a simulation, and the cost and emissions of the energy used."""
