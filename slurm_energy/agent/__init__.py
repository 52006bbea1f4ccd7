"""The node agent senergyd: one process per node, which runs as root.

The package `jobs` applies energy policies and writes energy records. `metering` reads counters and attributes
energy to jobs. `state` keeps everything that must survive a crash. `sockets` serves requests. The module
`daemon` connects these packages to one event loop and one worker thread. All code of `jobs` and `metering`
and most code of `state` runs in the worker thread.
"""
