"""Settings that all tests share."""

import gc
import os
import signal
import subprocess
import sys
import threading
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# JAX reads these when it is imported: eight devices on one CPU, for what is split over a mesh, and no promotion
# of types or ranks that nobody asked for. The compilers for TPUs and for GPUs are installed with the tests; neither is
# looked for, nor are CUDA's libraries where a test's own process looks at all devices.
os.environ["JAX_PLATFORMS"] = "cpu"
XLA_FLAGS = ["--xla_force_host_platform_device_count=8"]
# A test's programs are compiled to run a few times: without LLVM's optimisations, and with the plainer of XLA's two
# emitters, a program of attention takes a fifth of the time to compile. CI's main job and benchmarks run what users do.
if "--benchmark-only" not in sys.argv:
    XLA_FLAGS.append("--xla_backend_optimization_level=0")
    # Later versions have one emitter, and end the process at a flag that they don't know.
    if version("jaxlib").startswith("0.10."):
        XLA_FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS]).strip()
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# Tests interrupt themselves and their processes. A shell that starts them in the background has SIGINT ignored.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "kvproof",
    derandomize="CI" in os.environ,  # there a test fails by what was changed; elsewhere each run draws other examples
    deadline=None,
    database=None,
    max_examples=50,
    stateful_step_count=40,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvproof")


def pytest_collection_finish() -> None:
    """Keeps the collector of garbage off modules and tests, which live to the end: it took a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the scripts of an environment in which kvproof is installed from its wheel.

    What kvproof needs is found where this process finds it; kvproof itself is not.
    """
    root, wheels = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("wheels")
    repository = Path(__file__).parents[1]

    def run(*arguments: str) -> None:
        done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run("build", "--wheel", "--outdir", str(wheels), str(repository))
    venv.create(root, symlinks=True)
    (wheel,) = wheels.iterdir()
    run("pip", "--python", str(root / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = root.glob("lib/python*/site-packages")
    others = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    (packages / "others.pth").write_text("".join(f"{entry}\n" for entry in others))
    return root / "bin"
