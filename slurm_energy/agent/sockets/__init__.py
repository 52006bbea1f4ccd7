"""The agent's Unix sockets: limits on connections, messages as lines of JSON, and responses to messages."""
