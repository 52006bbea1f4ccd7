"""Step 6 of a study: the step-by-step deployment of the chosen energy measures at the site.

A combination of energy measures is called an alternative. The package contains the stages of the
deployment. It also contains the assignment of jobs to two groups, with and without the alternative
(arms), and the configuration keys that the deployment changes.
"""
