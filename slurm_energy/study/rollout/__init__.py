"""Step 6 of a study: stages of the deployment, arms, and the changed keys of the site."""
