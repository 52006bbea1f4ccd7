"""Process that emulates one node: FUSE file system, control socket, and CPU quotas of real programs."""
