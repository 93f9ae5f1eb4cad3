"""Device code for GPUs: Hopper, in Mosaic GPU."""
