"""Tests of the device code, against dense attention in float64."""
