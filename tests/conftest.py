"""Settings that all tests share."""

import os

from hypothesis import HealthCheck, settings

# JAX reads these when it is imported: eight devices on one CPU, for what is split over a mesh, and no promotion
# of types or ranks that nobody asked for. The compilers for TPUs and for GPUs are installed with the tests; neither is
# looked for, nor are CUDA's libraries where a test's own process looks at all devices.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
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
