"""Code of senergyctld that handles the job queue.

The modules rank the pending jobs periodically, change jobs in Slurm where necessary, and answer HTTP
requests about the queue.
"""
