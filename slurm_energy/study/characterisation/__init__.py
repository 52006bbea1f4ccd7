"""Step 3 of a study: classes of jobs and their response curves."""
