"""The attached model on a CUDA device: the same decisions as on the CPU, whatever arithmetic the weights are in."""

import copy

import pytest
import torch

from tests.models.families import FAMILIES, pruned_model, ragged, run
from thresher.models.attach import gates_of

pytestmark = pytest.mark.gpu

# Scores on two devices differ by rounding only; a decision may flip only where a score is this close to its threshold.
EPSILON = 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_the_device_decides_like_the_processor(name: str) -> None:
    model = pruned_model(name).float()
    inputs = ragged(model)
    expected, here = run(model, inputs)
    there_model = copy.deepcopy(model).cuda()
    found, there = run(there_model, {key: value.cuda() for key, value in inputs.items()})
    assert gates_of(there_model).thresholds.is_cuda and gates_of(there_model).thresholds.dtype == torch.float32
    for scores, threshold, a, b in zip(here.scores, gates_of(model).thresholds, here.gates, there.gates, strict=True):
        flipped = a != b.cpu()
        assert bool(((scores - threshold).abs()[flipped] < EPSILON).all())
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_scores_and_thresholds_in_float32(dtype: torch.dtype) -> None:
    model = pruned_model("bert").to("cuda", dtype)
    _, trace = run(model, {key: value.cuda() for key, value in ragged(model).items()})
    assert gates_of(model).thresholds.dtype == torch.float32
    assert all(scores.dtype == torch.float32 for scores in trace.scores)
    for scores, alive in zip(trace.scores, trace.alive, strict=False):
        mean = (scores * alive).sum(dim=-1) / alive.sum(dim=-1)
        torch.testing.assert_close(mean, torch.ones_like(mean), atol=1e-3, rtol=0)
