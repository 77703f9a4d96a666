"""Captured graphs of ours beside others' in one process: who gives memory back, or captures too, harms nobody."""

from typing import Any

import pytest
import torch

from tests.engine.test_cuda_executor import executor, pruned, texts
from thresher import hardware


def test_workspaces_are_given_back_before_a_capture_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: said.append("cleared"), raising=False)
    with pytest.raises(RuntimeError, match="captured"), hardware.own_workspaces():
        said.append("capturing")
        raise RuntimeError("could not be captured")
    assert said == ["cleared", "capturing", "cleared"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_workspaces_that_are_taken_back_are_not_ours(dtype: str) -> None:
    """What torch.compile does before it captures, and what its graphs then do with the memory."""
    model = pruned("bert")
    ids, engine = texts(model, (60,) * 40), executor(model, "graph", dtype)
    first = engine.compute(ids)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((2**22,), float("nan"), device="cuda") for _ in range(64)]
    for _ in range(3):
        again = engine.compute(ids)
        assert torch.equal(first.outputs, again.outputs) and torch.equal(first.kept, again.kept)
    assert all(bool(other.isnan().all()) for other in others), "a replay wrote into others' memory"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch.compile's own, when it first captures
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_compiled_model_with_graphs_of_its_own_beside_ours(ours_first: bool) -> None:
    model = pruned("bert")
    ids, engine = texts(model, (60,) * 40), executor(model, "graph", "fp16")
    layer = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda().half()
    compiled: Any = torch.compile(layer, mode="reduce-overhead")
    values = [torch.randn(rows, 256, device="cuda", dtype=torch.float16) for rows in (512, 1024, 2048)]

    def theirs() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [compiled(value).clone() for value in values]

    first = engine.compute(ids) if ours_first else None
    for _ in range(3):
        expected = theirs()
    torch.cuda.empty_cache()
    first = first or engine.compute(ids)
    for _ in range(4):
        again, found = engine.compute(ids), theirs()
        assert torch.equal(first.outputs, again.outputs) and torch.equal(first.kept, again.kept)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        torch.cuda.empty_cache()
