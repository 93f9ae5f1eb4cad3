"""CACHE: the pages of all layers of a model, their number, their split over devices, and the arrays of a step."""
