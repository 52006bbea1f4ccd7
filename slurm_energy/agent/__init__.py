"""The node agent, senergyd: one process per node, run as root.

`jobs` applies policies and writes energy records, `metering` reads counters and attributes energy to jobs,
`state` keeps everything that must survive a crash, `sockets` serves requests. `daemon` connects them to one
event loop and to one worker thread, in which all code of `jobs`, `metering` and most of `state` runs.
"""
