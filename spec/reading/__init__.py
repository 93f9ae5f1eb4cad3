"""R1: how arguments are read, and how faulty ones are refused."""
