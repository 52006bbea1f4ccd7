"""Step 5 of a study: the alternatives, their simulation, and the recommended plan.

An alternative is a combination of energy-saving measures for the cluster.
"""
