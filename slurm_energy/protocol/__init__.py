"""The parts of the protocols that both ends share: clients of the daemons, proofs, parsers of parameters."""
