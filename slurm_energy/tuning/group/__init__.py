"""Tuning of jobs on several nodes: all nodes of a job change their operating point at the same time.

A slower rank slows all others, so one search decides for the whole job. `coordinator` runs in senergyctld and
`member` in the agent of each node. Both are pure: they exchange the messages in `messages`, and the caller
passes the time.
"""
