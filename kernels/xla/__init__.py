"""The device functions in plain JAX: what runs on CPU, and wherever no kernel of a platform's own takes a call."""
