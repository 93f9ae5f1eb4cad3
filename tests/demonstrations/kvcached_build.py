"""Builds kvcached 0.1.6 for a CPU, unmodified, so that its allocator can be judged where there is no GPU.

By hand, and not in CI. In an environment of its own, in a clone::

    pip install -e '.[conformance]' torch==2.13.0 setuptools wheel ninja numpy posix_ipc wrapt
    pip install nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88        # their headers
    python -m tests.demonstrations.kvcached_build        # a minute or two
    kvproof check --backend kvproof.conformance.adapters.kvcached --level safe --seed 1

Its extension is C++ against torch's stable ABI and links CUDA's driver and runtime; its own ``setup.py`` wants a torch
that was built for CUDA. Here it gets a torch for CPUs that says so of itself while ``setup.py`` runs, CUDA's headers,
and archives in place of the libraries: the calls that its free lists make, how much memory is free, answer 1 TiB; those
that map memory of a GPU, which its own device ``cpu`` does not make, fail.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

__all__ = ["main"]

DRIVER = """
#include <cuda.h>
#include <cuda_runtime_api.h>

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *available = *total = (size_t)1 << 40;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaFree(void *address) { return cudaErrorNoDevice; }
cudaError_t cudaGetDevice(int *device) { return cudaErrorNoDevice; }
cudaError_t cudaSetDevice(int device) { return cudaErrorNoDevice; }
const char *cudaGetErrorString(cudaError_t error) { return "there is no GPU"; }

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = "there is no GPU";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return CUDA_ERROR_NO_DEVICE;
}
CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  return CUDA_ERROR_NO_DEVICE;
}
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  return CUDA_ERROR_NO_DEVICE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  return CUDA_ERROR_NO_DEVICE;
}
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return CUDA_ERROR_NO_DEVICE;
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count) {
  return CUDA_ERROR_NO_DEVICE;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t size) { return CUDA_ERROR_NO_DEVICE; }
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return CUDA_ERROR_NO_DEVICE; }
CUresult cuMemUnmap(CUdeviceptr address, size_t size) { return CUDA_ERROR_NO_DEVICE; }
"""
"""What its extension calls of CUDA, as CUDA 13's headers declare it."""

CUSTOM = """
import torch.utils.cpp_extension
torch.version.cuda, torch.utils.cpp_extension.CUDA_HOME = "13.0", {!r}
"""
"""What each Python of the build runs first, as its ``sitecustomize``."""


def main() -> None:
    """Has pip build the archive of PyPI and install it where this runs."""
    headers = Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13"
    parser = argparse.ArgumentParser(description="Builds and installs kvcached for a CPU, unmodified.")
    parser.add_argument("--cuda", type=Path, default=headers, help="where include/cuda.h is (default: %(default)s)")
    cuda = parser.parse_args().cuda
    with tempfile.TemporaryDirectory() as place:
        _archives(Path(place), cuda)
        (Path(place) / "sitecustomize.py").write_text(CUSTOM.format(str(cuda)))
        settings = os.environ | {"LIBRARY_PATH": place, "PYTHONPATH": place, "MAX_JOBS": "1"}
        command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--no-binary", "kvcached", "kvcached==0.1.6"], env=settings, check=True)


def _archives(place: Path, cuda: Path) -> None:
    """The libraries that the extension is linked with: the first has all that it calls."""
    (place / "driver.c").write_text(DRIVER)
    command = ["cc", "-O1", "-fPIC", f"-I{cuda / 'include'}", "-c", "driver.c", "-o", "driver.o"]
    subprocess.run(command, cwd=place, check=True)
    subprocess.run(["ar", "rcs", "libcuda.a", "driver.o"], cwd=place, check=True)
    for name in ("cudart", "c10_cuda", "torch_cuda"):
        subprocess.run(["ar", "rcs", f"lib{name}.a"], cwd=place, check=True)


if __name__ == "__main__":
    main()
