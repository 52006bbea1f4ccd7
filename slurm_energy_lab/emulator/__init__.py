"""Process that emulates one node.

It serves a FUSE file system and a control socket, and limits real programs by CPU quotas.
"""
