"""How many devices a CPU stands for in what a command runs, so that what is split over a mesh can be checked."""

import os

__all__ = ["want_devices"]

_FLAG = "--xla_force_host_platform_device_count"


def want_devices(number: int = 4) -> None:
    """Lets a CPU stand for several devices in this process and those that it starts, before they import jax.

    Other flags in ``XLA_FLAGS`` stay, and so does this one where the user has set it.

    Args:
        number: how many devices; as many as the suite's machines need by default.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={number}".strip()
