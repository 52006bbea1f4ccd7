"""The live queue: rank pending jobs with a scheduling policy and publish the order to Slurm."""
