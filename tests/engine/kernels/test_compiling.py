"""Every kernel compiles for GPUs of compute capability 8.0 and 9.0, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_kernel_compiles(cache: pytest.Cache) -> None:
    """Triton knows by a kernel's source, its own and the options what it has compiled before: that is kept."""
    script = Path(__file__).with_name("compiling.py")
    # A process of its own: in this one, the kernels may be interpreted.
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache.mkdir("triton"))}
    done = subprocess.run((sys.executable, str(script)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
