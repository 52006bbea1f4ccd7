"""Charts as SVG drawings, PNG files and terminal text."""
