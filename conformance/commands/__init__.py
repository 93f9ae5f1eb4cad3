"""The commands of ``kvproof``, a module each: their options, and what they print."""
