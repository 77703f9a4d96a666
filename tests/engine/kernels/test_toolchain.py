"""Without Triton the kernels can be imported and their twins used; a launch says what is missing."""

import subprocess
import sys

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # what an import finds where it is not installed
import torch
from thresher.engine.kernels import attention, embeddings, first, linear, norm, prune
from thresher.errors import ConfigError
values = torch.eye(4)
assert torch.equal(linear.linear_reference(values, values), values)
for launch in (
    lambda: linear.linear(values, values),
    lambda: norm.add_norm(values, values, values[0], values[0], epsilon=1e-5),
    lambda: attention.attention(torch.ones(4, 12), torch.tensor([0, 4]), heads=1, max_length=4, score=None),
):
    try:
        launch()
    except ConfigError as error:
        assert "pip install triton" in str(error)
    else:
        raise SystemExit("launched without Triton")
"""


def test_without_triton_a_launch_says_what_is_missing() -> None:
    done = subprocess.run((sys.executable, "-W", "error", "-c", WITHOUT_TRITON), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
