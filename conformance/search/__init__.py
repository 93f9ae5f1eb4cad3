"""Runs the machines: in processes of their own, with draws that follow from the seed, and makes short what deviates."""
