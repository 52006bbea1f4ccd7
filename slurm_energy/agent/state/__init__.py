"""Files that survive a crash of the agent: sessions, checkpoints, hook messages, spooled records."""
