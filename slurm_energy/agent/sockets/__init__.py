"""The agent's Unix sockets: bounded connections, messages in JSON lines, responses."""
