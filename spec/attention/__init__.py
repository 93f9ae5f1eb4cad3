"""ATT: attention over pages, in float64."""
