"""The live queue engine: what goes into the columns that `scheduling` ranks, and what comes of its answer."""
