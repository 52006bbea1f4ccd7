"""From hardware counters to the energy of each job: sampling, attribution, the node's energy accounts."""
