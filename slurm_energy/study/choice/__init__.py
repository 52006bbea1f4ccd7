"""Step 5 of a study: alternatives, their simulation and the recommended plan."""
