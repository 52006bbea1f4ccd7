"""Protocol code that both ends share: clients of the daemons, requests, proofs, parsers of parameters."""
