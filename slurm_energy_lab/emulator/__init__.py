"""The process that emulates one node: FUSE file system, control socket, CPU quotas of real programs."""
