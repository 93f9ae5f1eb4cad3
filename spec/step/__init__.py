"""MAN-2, MAN-11: the arguments of a step, for one request or a batch, and the batched step's result."""
