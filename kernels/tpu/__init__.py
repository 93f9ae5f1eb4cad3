"""Device code for TPUs."""
