"""What both ends of a connection share: clients of the daemons, proofs, and parsing of query parameters."""
