"""Step 6 of a study: stages of the deployment, its arms, and the changed configuration keys of the site."""
