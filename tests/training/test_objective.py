"""What is minimised in each stage: by hand, against the stock model, and where the gradients go."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.training.tiny import LAYERS, gated_model, keyword_rows, quick, tiny_tokenizer, tokenizer_for, value_rows
from thresher.core.cost import relative_flops
from thresher.models.attach import encoder_shape, gates_of, unprune_
from thresher.models.gating import Trace
from thresher.tasks.encode import collate, encode
from thresher.training.objective import Loss, expected_kept, finetune_loss, hard_loss, soft_loss

NOTHING = (-math.inf,) * LAYERS
SOME = (0.7, 0.9, 1.0, 1.2)


def batch_of(rows: int = 6, *, name: str = "bert", regression: bool = False) -> dict[str, Tensor]:
    examples = (value_rows if regression else keyword_rows)(rows, seed=4)
    data = encode(tokenizer_for(name), examples, max_length=None, positions=None)
    return collate(data.rows, pad_id=tiny_tokenizer().pad_token_id)


def soft(model: Any, batch: dict[str, Tensor], **changes: Any) -> Loss:
    gates_of(model).set_mode("soft", soft_mask=changes.get("soft_mask", "cumulative"))
    return soft_loss(model, batch, config=quick(**changes), shape=encoder_shape(model))


def hard(model: Any, batch: dict[str, Tensor], *, logits: Tensor | None = None, teacher: Any = None, **kw: Any) -> Loss:
    gates_of(model).set_mode("hard")
    batch = batch if logits is None else {**batch, "targets": logits}
    return hard_loss(model, batch, config=quick(**kw), shape=encoder_shape(model), teacher=teacher)


def stock_copy(model: Any) -> Any:
    teacher = copy.deepcopy(model)
    unprune_(teacher)
    return teacher.eval()


def logits_by_class(model: Any, batch: dict[str, Tensor]) -> Tensor:
    logits: Tensor = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return logits


# --- expected tokens -------------------------------------------------------------------------------------------------


def test_expected_kept_by_hand() -> None:
    """A token survives with the product of its gates; padding (the second row's last token) counts nothing."""
    alive = torch.tensor([[True, True, True], [True, True, False]])
    gates = [torch.tensor([[1.0, 0.5, 0.2], [1.0, 0.4, 0.0]]), torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.25, 0.0]])]
    trace = Trace(protected=torch.zeros_like(alive), alive=[alive], gates=gates)
    torch.testing.assert_close(expected_kept(trace), torch.tensor([[1.7, 1.25], [1.4, 1.1]]))


def test_expected_kept_is_the_real_count_when_gates_are_sharp() -> None:
    """At a temperature near zero the soft gate decides as the hard one does."""
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    gates = gates_of(model)
    gates.temperature = 1e-7
    found = soft(model, batch)
    assert gates.trace is not None and found.flops is not None
    expected = expected_kept(gates.trace)
    cheap = hard(model, batch)
    assert gates.trace is not None and cheap.flops is not None
    torch.testing.assert_close(expected, gates.trace.kept().float(), atol=1e-3, rtol=0)
    assert 0.3 < cheap.flops.item() < 0.9
    assert found.flops.item() == pytest.approx(cheap.flops.item(), abs=1e-4)


# --- fine-tuning -----------------------------------------------------------------------------------------------------


def test_finetune_loss_is_the_stock_models() -> None:
    batch, model = batch_of(), gated_model(dropout=0.0)
    stock = stock_copy(model)
    gates_of(model).set_mode("off")
    found = finetune_loss(model, batch)
    assert found.flops is None
    assert torch.equal(found.total, F.cross_entropy(logits_by_class(stock, batch), batch["labels"]))


def test_regression_is_squared_error() -> None:
    batch, model = batch_of(regression=True), gated_model(outputs=1, dropout=0.0)
    gates_of(model).set_mode("off")
    assert batch["labels"].dtype == torch.float32
    wanted = (logits_by_class(model, batch).squeeze(-1) - batch["labels"]).square().mean()
    torch.testing.assert_close(finetune_loss(model, batch).total, wanted)


# --- soft stage ------------------------------------------------------------------------------------------------------


def test_soft_loss_adds_the_regulariser_times_lambda() -> None:
    batch, model = batch_of(), gated_model(dropout=0.0)
    free = soft(model, batch, target_flops=None, lambda_=0.0)
    trace = gates_of(model).trace
    assert trace is not None
    prunable = batch["attention_mask"].bool() & (torch.arange(batch["input_ids"].shape[1]) > 0)
    price = torch.stack([gate[prunable].mean() for gate in trace.gates]).mean()
    assert 0.05 < price.item() < 0.95
    paid = soft(model, batch, target_flops=None, lambda_=0.7)
    torch.testing.assert_close(paid.total - free.total, 0.7 * price)
    torch.testing.assert_close(free.total, F.cross_entropy(logits_by_class(model, batch), batch["labels"]))


def test_soft_loss_adds_the_squared_distance_to_the_target() -> None:
    batch, model = batch_of(), gated_model(dropout=0.0)
    free = soft(model, batch, target_flops=None, lambda_=0.0)
    trace = gates_of(model).trace
    assert trace is not None
    flops = relative_flops(encoder_shape(model), trace.lengths(), expected_kept(trace))
    for target, weight in ((0.2, 10.0), (0.9, 3.0)):
        found = soft(model, batch, target_flops=target, budget_weight=weight)
        torch.testing.assert_close(found.total - free.total, weight * (flops - target) ** 2, atol=1e-6, rtol=1e-5)
        assert found.flops is not None and not found.flops.requires_grad
        assert found.flops.item() == pytest.approx(flops.item())


@pytest.mark.parametrize("soft_mask", ["cumulative", "plain"])
@pytest.mark.parametrize("price", [{"target_flops": None, "lambda_": 1.0}, {"target_flops": 0.5}])
def test_gradients_reach_every_finite_threshold_and_the_weights(soft_mask: str, price: dict[str, Any]) -> None:
    model = gated_model(dropout=0.0)
    soft(model, batch_of(), soft_mask=soft_mask, **price).total.backward()
    gradient = gates_of(model).thresholds.grad
    assert gradient is not None and torch.isfinite(gradient).all()
    assert (gradient[:3] != 0).all()
    assert gradient[3] == 0  # the last one is infinite
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("target", "sign"), [(0.05, -1), (1.0, 1)])
def test_the_price_alone_pushes_thresholds_the_right_way(target: float, sign: int) -> None:
    """Too expensive: descent raises thresholds, so the gradient is negative; too cheap: the other way."""
    model = gated_model(dropout=0.0)
    soft(model, batch_of(), target_flops=target, budget_weight=1e6).total.backward()
    gradient = gates_of(model).thresholds.grad
    assert gradient is not None and (torch.sign(gradient[:3]) == sign).all()


def test_the_regulariser_raises_thresholds() -> None:
    model = gated_model(dropout=0.0)
    soft(model, batch_of(), target_flops=None, lambda_=1e6).total.backward()
    gradient = gates_of(model).thresholds.grad
    assert gradient is not None and (gradient[:3] < 0).all()


# --- hard stage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_distillation_is_mixed_as_configured(share: float) -> None:
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    wanted = torch.randn(6, 2, generator=torch.Generator().manual_seed(1)) * 9
    own = hard(model, batch).total
    logits = logits_by_class(model, batch)
    torch.testing.assert_close(own, F.cross_entropy(logits, batch["labels"]))
    teacher, student = torch.softmax(wanted / 3.0, -1), torch.log_softmax(logits / 3.0, -1)
    soft_part = (teacher * (teacher.log() - student)).sum(-1).mean() * 9.0
    mixed = hard(model, batch, logits=wanted, distill=share, distill_temperature=3.0).total
    assert abs(own.item() - soft_part.item()) > 0.1
    torch.testing.assert_close(mixed, (1 - share) * own + share * soft_part)


def test_hard_loss_counts_real_flops_and_leaves_thresholds_alone() -> None:
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    found = hard(model, batch)
    trace = gates_of(model).trace
    assert trace is not None and found.flops is not None
    assert trace.kept().dtype == torch.int64
    assert found.flops.item() == pytest.approx(
        float(relative_flops(encoder_shape(model), batch["attention_mask"].sum(-1), trace.kept()))
    )
    found.total.backward()
    assert gates_of(model).thresholds.grad is None


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_hidden_distillation_is_zero_for_an_unpruned_twin(name: str) -> None:
    batch, model = batch_of(name=name), gated_model(name, dropout=0.0, collapse_last=False)
    teacher = stock_copy(model)
    gates_of(model).set_thresholds(NOTHING)
    without = hard(model, batch).total
    assert hard(model, batch, teacher=teacher, distill_hidden=100.0).total.item() == pytest.approx(
        without.item(), abs=1e-6
    )
    # Pruned, the same model pays for the distance of its first-token states, at the embeddings and every layer.
    gates_of(model).set_thresholds(SOME)
    inputs = {key: value for key, value in batch.items() if key not in ("labels", "rows")}
    theirs = teacher(**inputs, output_hidden_states=True).hidden_states
    gates_of(model).set_mode("hard")
    ours = model(**inputs, output_hidden_states=True).hidden_states
    assert len(ours) == len(theirs) == LAYERS + 1
    distances = [(a[:, 0] - b[:, 0]).square().mean() for a, b in zip(ours, theirs, strict=True)]
    assert distances[0] < 1e-10 < distances[-1]
    pruned = hard(model, batch).total
    paid = hard(model, batch, teacher=teacher, distill_hidden=100.0).total
    torch.testing.assert_close(paid - pruned, 100.0 * torch.stack(distances).mean(), atol=1e-4, rtol=1e-4)


def test_distilling_embeddings_compares_live_tokens_only() -> None:
    """The paper's choice: pruning itself costs nothing there, a moved embedding does, and padding does not count."""
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    teacher, price = stock_copy(model), {"distill_hidden": 100.0, "distill_states": "embeddings"}
    plain = hard(model, batch)
    assert hard(model, batch, teacher=teacher, **price).total.item() == pytest.approx(plain.total.item(), abs=1e-5)
    with torch.no_grad():
        teacher.get_input_embeddings().weight[0].add_(3.0)  # [PAD]
    assert hard(model, batch, teacher=teacher, **price).total.item() == pytest.approx(plain.total.item(), abs=1e-5)
    with torch.no_grad():
        teacher.bert.embeddings.LayerNorm.bias.add_(0.5)
    moved = hard(model, batch, teacher=teacher, **price).total
    assert moved.item() - plain.total.item() == pytest.approx(100 * 0.25, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "thresholds"), [("bert", SOME), ("mpnet", SOME), ("albert", (0.95, 0.96, 0.97, 0.98))]
)
@pytest.mark.parametrize("layers", ["every", "last"])
def test_distilling_kept_tokens_compares_what_each_layer_keeps(
    name: str, thresholds: tuple[float, ...], layers: str
) -> None:
    """The same number whether dropped tokens are masked or left out of the tensors."""
    model = gated_model(name, thresholds=thresholds, dropout=0.0, collapse_last=False)
    batch = batch_of(name=name)
    teacher = stock_copy(model)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    theirs = teacher(**inputs, output_hidden_states=True).hidden_states
    gates = gates_of(model)
    ours = model(**inputs, output_hidden_states=True).hidden_states
    assert gates.trace is not None
    kept = gates.trace.alive[1:]
    assert 1 < int(kept[-1].sum(dim=1).max()) < int(kept[0].sum(dim=1).max())
    distances = [(a[k] - b[k]).square().mean() for a, b, k in zip(ours[1:], theirs[1:], kept, strict=True)]
    wanted = distances[-1] if layers == "last" else torch.stack(distances).mean()
    price: dict[str, Any] = {"distill_hidden": 10.0, "distill_states": "kept", "distill_layers": layers}
    plain = hard(model, batch).total
    for shortened in (False, True):
        with gates.shortening(shortened):
            paid = hard(model, batch, teacher=teacher, **price).total
        torch.testing.assert_close(paid - plain, 10.0 * wanted, atol=1e-4, rtol=1e-4)


def test_the_last_layer_alone_may_match_its_first_token() -> None:
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    teacher = stock_copy(model)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    theirs = teacher(**inputs, output_hidden_states=True).hidden_states[-1][:, 0]
    ours = model(**inputs, output_hidden_states=True).hidden_states[-1][:, 0]
    paid = hard(model, batch, teacher=teacher, distill_hidden=2.0, distill_layers="last").total
    torch.testing.assert_close(paid - hard(model, batch).total, 2 * (ours - theirs).square().mean())


def test_the_teacher_gets_no_gradient() -> None:
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    teacher = stock_copy(model)
    hard(model, batch, teacher=teacher, distill_hidden=1.0).total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert model.classifier.weight.grad is not None
