"""Step 6 of a study: stages and arms of the deployment, and the configuration keys that it changes."""
