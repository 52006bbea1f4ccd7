"""Step 3 of an energy study: classes of similar jobs, and their response curves."""
