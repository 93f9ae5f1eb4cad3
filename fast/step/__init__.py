"""MAN-11: the batched step."""
