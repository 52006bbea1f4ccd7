"""Reports of `senergy report`: sreport's grammar, rows and layout for energy, emissions and cost."""
