"""Sums of energy, CPU time and GPU time in the database, and the use of quotas."""
