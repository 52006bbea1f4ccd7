"""Storage of the agent's state in files that survive a crash of the agent.

The files contain the sessions of jobs, checkpoints, messages of the hooks, and the records that the
controller has not yet confirmed.
"""
