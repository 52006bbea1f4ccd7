"""Reports of `senergy report`: energy, emissions and cost in the form of Slurm's sreport.

The command line, the rows and the layout of the reports follow sreport.
"""
