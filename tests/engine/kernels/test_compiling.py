"""Every kernel compiles for GPUs of compute capability 8.0 and 9.0, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_compiles(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compiling.py")
    # A process of its own: in this one, the kernels may be interpreted.
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run((sys.executable, str(script)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
