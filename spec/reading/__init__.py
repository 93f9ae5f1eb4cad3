"""R1: how arguments are read and refused."""
