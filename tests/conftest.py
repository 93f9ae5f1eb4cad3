"""Settings that all tests share."""

import os

from hypothesis import HealthCheck, settings

# JAX reads these when it is imported: eight devices on one CPU, for what is split over a mesh, and no promotion
# of types or ranks that nobody asked for. The compiler for TPUs is installed with the tests; a TPU is not looked for.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

settings.register_profile(
    "kvproof",
    deadline=None,
    database=None,
    max_examples=50,
    stateful_step_count=40,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvproof")
