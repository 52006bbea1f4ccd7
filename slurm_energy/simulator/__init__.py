"""What a policy would do with a workload: discrete events with exact energies, on the live policies' code."""
