"""The gates by themselves, on attention small enough to follow by hand."""

import math

import pytest
import torch
from torch import Tensor

from thresher.config import PruneConfig
from thresher.errors import ModelError
from thresher.models.gating import Gates, Trace


def gates_with(*thresholds: float, mode: str = "hard", soft_mask: str = "cumulative", **settings: object) -> Gates:
    gates = Gates(PruneConfig(**{"collapse_last": False, **settings}), thresholds)
    gates.set_mode(mode, soft_mask=soft_mask)
    return gates


def step(gates: Gates, logits: Tensor) -> Tensor | None:
    """One layer: attention over what lives, then the decision."""
    return gates.decide(gates.probabilities(logits), torch.ones(*logits.shape[:2], logits.shape[-1], 2))


def towards(*weights: float) -> Tensor:
    """Logits with which every query gives key k a share proportional to weights[k]."""
    return torch.tensor(weights).log().expand(1, 1, len(weights), len(weights))


def test_hard_layers_by_hand() -> None:
    """Shares 1:2:4:1 over four live tokens score 0.5, 1, 2, 0.5; the second layer sees only survivors, 1:4 again."""
    gates = gates_with(0.9, 1.5)
    gates.begin(torch.tensor([[1, 1, 1, 1, 0]]), None)
    assert step(gates, towards(1, 2, 4, 1, 9)) is None
    assert step(gates, towards(1, 2, 4, 9, 9)) is None
    trace = gates.trace
    assert trace is not None
    torch.testing.assert_close(trace.scores[0], torch.tensor([[0.5, 1.0, 2.0, 0.5, 0.0]]))
    assert trace.alive[1].tolist() == [[True, True, True, False, False]]
    torch.testing.assert_close(trace.scores[1], torch.tensor([[3 / 7, 6 / 7, 12 / 7, 0.0, 0.0]]))
    assert trace.alive[2].tolist() == [[True, False, True, False, False]]
    assert trace.kept().tolist() == [[3, 2]] and trace.lengths().tolist() == [4]


def test_soft_cumulative_by_hand() -> None:
    """Even attention. Layer 1: token 1 ties, so it fades to 1/2. Layer 2: judged in full it ties again: 1/4."""
    gates = gates_with(1.0, 1.0, mode="soft")
    gates.begin(torch.tensor([[1, 1, 0]]), None)
    assert step(gates, towards(1, 1, 1)) is None
    trace = gates.trace
    assert trace is not None
    torch.testing.assert_close(trace.alive[1], torch.tensor([[1.0, 0.5, 0.0]]))
    torch.testing.assert_close(
        gates.probabilities(towards(1, 1, 1))[0, 0, 0], torch.tensor([2 / 3, 1 / 3, 0.0]), atol=1e-6, rtol=0
    )
    assert step(gates, towards(1, 1, 1)) is None
    torch.testing.assert_close(trace.scores[1], torch.tensor([[1.0, 1.0, 0.0]]))
    torch.testing.assert_close(trace.gates[1], torch.tensor([[1.0, 0.5, 0.0]]))
    torch.testing.assert_close(trace.alive[2], torch.tensor([[1.0, 0.25, 0.0]]))
    torch.testing.assert_close(trace.kept(), torch.tensor([[1.5, 1.25]]))


def test_soft_cumulative_in_paper_scale() -> None:
    gates = gates_with(0.5, 0.5, mode="soft", scale="paper")
    gates.begin(torch.tensor([[1, 1, 0]]), None)
    step(gates, towards(1, 1, 1))
    step(gates, towards(1, 1, 1))
    trace = gates.trace
    assert trace is not None
    torch.testing.assert_close(trace.scores[0], torch.tensor([[0.5, 0.5, 0.0]]))
    torch.testing.assert_close(trace.scores[1], torch.tensor([[2 / 3, 2 / 3, 0.0]]))


def test_soft_plain_by_hand() -> None:
    """The gate is handed to the layer, and the next layer attends to everything that is not padding."""
    gates = gates_with(1.0, 1.0, mode="soft", soft_mask="plain")
    gates.begin(torch.tensor([[1, 1, 0]]), None)
    gate = step(gates, towards(1, 1, 1))
    assert gate is not None
    torch.testing.assert_close(gate, torch.tensor([[1.0, 0.5, 0.0]]))
    trace = gates.trace
    assert trace is not None
    assert trace.alive[1].tolist() == [[True, True, False]]
    again = step(gates, towards(1, 3, 9))
    assert again is not None
    torch.testing.assert_close(trace.scores[1], torch.tensor([[0.5, 1.5, 0.0]]))
    torch.testing.assert_close(again[0, 1], torch.sigmoid(torch.tensor(5.0)))
    assert trace.kept().tolist() == [[2, 2]], "outputs are scaled, and no token fades"


def test_temperature_is_read_at_every_step() -> None:
    gates = gates_with(1.0, mode="soft", soft_mask="plain")
    values = []
    for temperature in (0.1, 1.0):
        gates.temperature = temperature
        gates.begin(torch.ones(1, 2), None)
        gate = step(gates, towards(1, 3))
        assert gate is not None
        values.append(gate[0, 1].item())
    assert values == pytest.approx([1 / (1 + math.exp(-5.0)), 1 / (1 + math.exp(-0.5))])


def test_a_new_pass_forgets_the_old_one() -> None:
    gates = gates_with(1.0, 1.0)
    for lengths in ((3,), (5,)):
        gates.begin(torch.ones(1, *lengths), None)
        step(gates, torch.zeros(1, 1, *lengths, *lengths))
        trace = gates.trace
        assert trace is not None and trace.lengths().tolist() == [*lengths]
        assert len(trace.scores) == 1


def test_more_passes_than_thresholds() -> None:
    gates = gates_with(0.5)
    gates.begin(torch.ones(1, 2), None)
    step(gates, towards(1, 1))
    with pytest.raises(ModelError, match="gradient checkpointing is not supported"):
        step(gates, towards(1, 1))


def test_before_a_pass_begins() -> None:
    with pytest.raises(ModelError, match="^the encoder was called by itself; call the whole model"):
        gates_with(0.5).probabilities(towards(1, 1))
    with pytest.raises(ModelError, match="^the encoder was called by itself"):
        gates_with(0.5).decide(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2))


def test_thresholds_learn_in_soft_mode_only() -> None:
    gates = gates_with(0.5)
    learns = []
    for mode in ("hard", "soft", "off", "soft", "hard"):
        gates.set_mode(mode)
        learns.append(gates.thresholds.requires_grad)
    assert learns == [False, True, False, True, False]


def test_changing_the_mode_keeps_the_kind_of_soft_mask() -> None:
    gates = gates_with(0.5, mode="soft", soft_mask="plain")
    gates.set_mode("hard")
    gates.set_mode("soft")
    assert gates.soft_mask == "plain"
    gates.set_mode("soft", soft_mask="cumulative")
    assert gates.soft_mask == "cumulative"


def test_precision_of_thresholds() -> None:
    gates = gates_with(0.1, math.inf)
    for dtype in (torch.float16, torch.bfloat16):
        gates.to(dtype)
        assert gates.thresholds.dtype == torch.float32
        assert torch.equal(gates.thresholds.detach(), torch.tensor([0.1, math.inf]))
    gates.double()
    assert gates.thresholds.dtype == torch.float64
    gates.float()
    assert gates.thresholds.dtype == torch.float32


def test_kept_shares_by_hand() -> None:
    """Five and three tokens, two of them protected: of the other six, four and then one are left."""
    first = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    second = torch.tensor([[True, True, True, True, False], [True, False, True, False, False]])
    third = torch.tensor([[True, False, True, False, False], [True, False, False, False, False]])
    protected = torch.zeros_like(first)
    protected[:, 0] = True
    shares = Trace(protected=protected, alive=[first, second, third]).kept_shares()
    torch.testing.assert_close(shares, torch.tensor([4 / 6, 1 / 6]))
