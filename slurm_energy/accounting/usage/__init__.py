"""Sums of energy, CPU time and GPU time, and the use of quotas."""
