"""Correct backends that are built otherwise than ``kvproof.spec`` and ``kvproof.fast``, and broken variants of one."""
