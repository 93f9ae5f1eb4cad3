"""MAN-2, MAN-11: what a call for one request, or for many, asks for."""
