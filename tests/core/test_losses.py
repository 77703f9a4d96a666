import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thresher.core.losses import (
    budget_term,
    distillation_loss,
    hidden_distillation_loss,
    keep_regulariser,
    task_loss,
)


def test_regulariser_by_hand() -> None:
    """Four prunable tokens: layer means (0.5 + 0.1 + 0.2 + 0.4) / 4 = 0.3 and (0 + 0 + 0 + 0.4) / 4 = 0.1."""
    alive = torch.tensor([[True, True, True], [True, True, True], [True, False, False]])
    protected = torch.tensor([[True, False, False], [True, False, False], [True, False, False]])
    first = torch.tensor([[1.0, 0.5, 0.1], [1.0, 0.2, 0.4], [1.0, 0.0, 0.0]])
    second = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.4], [1.0, 0.0, 0.0]])
    assert keep_regulariser([first, second], alive=alive, protected=protected).item() == pytest.approx(0.2)
    # What padding and protected tokens hold does not count.
    noisy = first.clone()
    noisy[2, 1:] = 99.0
    noisy[:, 0] = -99.0
    assert keep_regulariser([noisy, second], alive=alive, protected=protected).item() == pytest.approx(0.2)


def test_regulariser_gradient_by_hand() -> None:
    gate = torch.full((1, 4), 0.5, requires_grad=True)
    alive = torch.tensor([[True, True, True, False]])
    protected = torch.tensor([[True, False, False, False]])
    keep_regulariser([gate, gate.detach()], alive=alive, protected=protected).backward()
    assert gate.grad is not None and gate.grad.tolist() == [[0.0, 0.25, 0.25, 0.0]]


def test_regulariser_without_prunable_tokens_is_zero() -> None:
    everything = torch.ones(2, 1, dtype=torch.bool)
    assert keep_regulariser([torch.ones(2, 1)], alive=everything, protected=everything).item() == 0.0


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), extra=st.integers(0, 6), value=st.floats(0, 1))
def test_regulariser_of_a_constant_gate_is_the_constant(lengths: list[int], extra: int, value: float) -> None:
    """So lambda means the same at any length and any padding."""
    alive = torch.arange(max(lengths) + extra)[None] < torch.tensor(lengths)[:, None]
    protected = torch.zeros_like(alive)
    gates = [torch.full(alive.shape, value)] * 3
    assert keep_regulariser(gates, alive=alive, protected=protected).item() == pytest.approx(value, abs=1e-6)


def test_budget_term_by_hand() -> None:
    flops = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    loss = budget_term(flops, 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.04)
    assert flops.grad is not None and flops.grad.item() == pytest.approx(0.4)
    assert budget_term(torch.tensor(0.5), 0.5).item() == 0.0


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [math.log(3.0), 0.0]])
    loss = task_loss(logits, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)


def test_regression_is_mean_squared_error() -> None:
    """Also with whole-number labels; a (batch, 1) against (batch,) must not broadcast to (batch, batch)."""
    logits = torch.tensor([[1.0], [3.0]])
    assert task_loss(logits, torch.tensor([2.0, 5.0])).item() == pytest.approx(2.5)
    assert task_loss(logits, torch.tensor([2, 5])).item() == pytest.approx(2.5)
    assert distillation_loss(logits, torch.tensor([[2.0], [5.0]]), temperature=3.0).item() == pytest.approx(2.5)


def test_half_precision_logits_give_float32_losses() -> None:
    for outputs in (1, 2):
        logits = torch.ones(2, outputs, dtype=torch.bfloat16)
        assert task_loss(logits, torch.tensor([0, 0])).dtype == torch.float32
        assert distillation_loss(logits, logits, temperature=2.0).dtype == torch.float32


def test_distillation_by_hand() -> None:
    """Teacher (3/4, 1/4), student (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2); softened logits are divided by T."""
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    student = torch.zeros(3, 2)
    for temperature in (1.0, 2.0):
        teacher = torch.tensor([[temperature * math.log(3.0), 0.0]] * 3)
        loss = distillation_loss(student, teacher, temperature=temperature)
        assert loss.item() == pytest.approx(divergence * temperature**2, rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.5, 5.0), outputs=st.integers(1, 4))
def test_distillation_is_zero_for_equal_logits_and_positive_otherwise(
    seed: int, temperature: float, outputs: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(5, outputs, generator=generator)
    assert distillation_loss(teacher.clone(), teacher, temperature=temperature).item() == pytest.approx(0.0, abs=1e-6)
    shifted = teacher + torch.linspace(0.0, 1.0, outputs + 1)[1:]
    assert distillation_loss(shifted, teacher, temperature=temperature).item() > 1e-4


def test_distillation_ignores_a_common_shift() -> None:
    teacher = torch.tensor([[1.0, -2.0, 0.5]])
    assert distillation_loss(teacher + 7.0, teacher, temperature=2.0).item() == pytest.approx(0.0, abs=1e-6)
    assert distillation_loss(teacher.flip(-1), teacher, temperature=2.0).item() > 0.1


def test_hidden_distillation_of_first_tokens_by_hand() -> None:
    """Errors of the first tokens 1 and 4 (mean over 2 x 2 numbers), mean 2.5; other tokens do not count."""
    teacher = [torch.zeros(2, 3, 2), torch.zeros(2, 3, 2)]
    states = [torch.full((2, 3, 2), 9.0), torch.full((2, 3, 2), 9.0)]
    states[0][:, 0] = 1.0
    states[1][:, 0] = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    alive = torch.ones(2, 3, dtype=torch.bool)
    found = hidden_distillation_loss(states, teacher, which="first_token", alive=alive)
    assert found.item() == pytest.approx(2.5)
    assert hidden_distillation_loss(teacher, teacher, which="first_token", alive=alive).item() == 0.0
    with pytest.raises(ValueError, match="zip"):
        hidden_distillation_loss(states, teacher[:1], which="first_token", alive=alive)


def test_hidden_distillation_of_embeddings_by_hand() -> None:
    """Only the first entry and only live tokens: (1 + 1 + 2 * 9 + 2 * 0) / 6 numbers."""
    states = [torch.tensor([[[1.0, 1.0], [3.0, 3.0]], [[0.0, 0.0], [7.0, 7.0]]]), torch.full((2, 2, 2), 9.0)]
    alive = torch.tensor([[True, True], [True, False]])
    teacher = [torch.zeros(2, 2, 2), torch.zeros(2, 2, 2)]
    found = hidden_distillation_loss(states, teacher, which="embeddings", alive=alive)
    assert found.item() == pytest.approx(20 / 6)


@pytest.mark.parametrize(("outputs", "means"), [(3, "classes"), (1, "value")])
def test_classes_and_values_lose_what_they_always_did_to_the_bit(outputs: int, means: str) -> None:
    """Losses and gradients, said or not said what outputs mean, are those of the plain functions."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(6, outputs, generator=generator)
    teacher = torch.randn(6, outputs, generator=generator)
    labels = torch.randint(0, outputs + 1, (6,), generator=generator) % max(outputs, 2)
    for said in (means, None):
        ours, theirs = plain.clone().requires_grad_(), plain.clone().requires_grad_()
        found = task_loss(ours, labels, means=said)
        soft = distillation_loss(ours, teacher, temperature=2.0, means=said)
        if means == "value":
            wanted = F.mse_loss(theirs.squeeze(-1), labels.float())
            wanted_soft = F.mse_loss(theirs, teacher)
        else:
            wanted = F.cross_entropy(theirs, labels)
            one, other = F.log_softmax(theirs / 2.0, dim=-1), F.log_softmax(teacher / 2.0, dim=-1)
            wanted_soft = F.kl_div(one, other, reduction="batchmean", log_target=True) * 4.0
        assert torch.equal(found, wanted) and torch.equal(soft, wanted_soft)
        (0.5 * found + 0.5 * soft).backward()
        (0.5 * wanted + 0.5 * wanted_soft).backward()
        assert ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad)


# --- heads that read every token ------------------------------------------------------------------------------------


def test_span_loss_is_the_cross_entropy_of_both_places_over_real_tokens() -> None:
    logits = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths, labels = (5, 3, 4), torch.tensor([[1, 3], [0, 0], [2, 2]])
    alive = torch.arange(5) < torch.tensor(lengths)[:, None]
    found = task_loss(logits, labels, means="span", alive=alive)
    parts = [
        -math.log(float(torch.softmax(logits[row, :length, which], dim=0)[labels[row, which]]))
        for row, length in enumerate(lengths)
        for which in (0, 1)
    ]
    assert float(found) == pytest.approx(sum(parts) / 6, abs=1e-6)
    noise = torch.where(alive[..., None], logits, 100.0)
    assert torch.equal(task_loss(noise, labels, means="span", alive=alive), found), "padding has no chance"


def test_tag_loss_counts_labelled_tokens_only() -> None:
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[-100, 2, 0, -100], [-100, 1, -100, -100]])
    own = torch.nn.functional.cross_entropy(logits[labels >= 0], labels[labels >= 0])
    torch.testing.assert_close(task_loss(logits, labels, means="tags"), own)
    assert float(task_loss(logits, torch.full((2, 4), -100), means="tags")) == 0, "no label, no loss, and no NaN"


@pytest.mark.parametrize("means", ["span", "tags"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_of_tokens(means: str, temperature: float) -> None:
    """By hand, text by text; nothing where both say the same, and padding never counts."""
    ours, theirs = torch.randn(2, 3, 5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    lengths = (5, 1, 4)
    alive = torch.arange(5) < torch.tensor(lengths)[:, None]
    options: dict[str, Any] = {"temperature": temperature, "means": means}

    def divergence(one: Tensor, other: Tensor) -> float:
        wanted, found = (torch.softmax(each / temperature, dim=0) for each in (other, one))
        return float((wanted * (wanted / found).log()).sum()) * temperature**2

    if means == "span":
        parts = [divergence(ours[r, :n, w], theirs[r, :n, w]) for r, n in enumerate(lengths) for w in (0, 1)]
    else:
        parts = [divergence(ours[r, i], theirs[r, i]) for r, n in enumerate(lengths) for i in range(n)]
    found = float(distillation_loss(ours, theirs, **options, alive=alive))
    assert found == pytest.approx(sum(parts) / len(parts), abs=1e-5)
    noise = torch.where(alive[..., None], ours, 7.0)
    assert float(distillation_loss(noise, theirs, **options, alive=alive)) == pytest.approx(found, abs=1e-6)
    assert float(distillation_loss(noise, ours, **options, alive=alive)) == pytest.approx(0, abs=1e-6)
    given = ours.clone().requires_grad_()
    distillation_loss(given, theirs, **options, alive=alive).backward()
    assert given.grad is not None and bool(given.grad.isfinite().all()) and float(given.grad[~alive].abs().sum()) == 0
