"""ATT: attention over pages, computed in float64."""
