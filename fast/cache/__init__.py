"""CACHE: the pages of a model on the device and what a step needs of them."""
