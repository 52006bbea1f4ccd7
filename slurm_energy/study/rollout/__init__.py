"""Step 6 of a study: the deployment of the chosen alternative on the site.

The package contains the stages of the deployment and the assignment of jobs to two arms, with and without
the alternative. It also contains the configuration keys that the deployment changes.
"""
