"""The kernels run on a CUDA device where there is one, and otherwise in Triton's interpreter."""

import os
from importlib.util import find_spec

import pytest
import torch

# Read when the kernels are defined, so this must come before any import of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def needs_triton() -> None:
    if find_spec("triton") is None:
        pytest.skip("needs Triton, which is not installed: pip install triton")
