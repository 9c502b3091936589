"""Pages in HTML about runs: read from their folders, drawn as SVG, and written as one file."""
