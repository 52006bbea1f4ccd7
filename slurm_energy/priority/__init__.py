"""The live queue: rank pending jobs with the policies of `scheduling` and publish the order to Slurm."""
