"""``kvproof try``: a sequence of calls written by hand, made on a backend and on the specification, and judged.

`script` reads Python into calls and says which row of the tables each is, `trial` makes and judges them.
"""
