"""R1: how arguments, tokens, extra keys and requests are read and refused."""
