"""CACHE: the pages of a model and what a step needs of them."""
