"""Tuning of jobs on several nodes: all nodes of a job change their operating point at the same time.

A slow rank slows down all other ranks. Therefore one search decides for the whole job. The module
`coordinator` runs in senergyctld, and `member` runs in the agent of each node. Both modules are pure. They
exchange the messages defined in `messages`, and their callers pass the present time.
"""
