"""Storage of the deliveries of agents in the database, and queries of the stored data.

The deliveries are records of jobs, power traces, and periods of the nodes' energy.
"""
