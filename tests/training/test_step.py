"""Steps recorded as CUDA graphs train the same model as steps that torch runs one by one."""

import re
from typing import Any

import pytest
import torch

from tests.training.test_more import beside
from tests.training.tiny import gated_model, keyword_task, quick, tiny_tokenizer, tokenizer_for
from thresher.models.attach import gates_of
from thresher.training import step as module
from thresher.training.method import Ltp
from thresher.training.optimizer import make_optimizer
from thresher.training.snapshot import optimizer_tensors, restore_optimizer
from thresher.training.trainer import Trainer

pytestmark = pytest.mark.gpu


def trained(
    name: str = "bert", *, record: bool, dropout: float = 0.0, more: int = 0, **changes: Any
) -> tuple[dict[str, torch.Tensor], Any]:
    """`more`: rows without labels beside those of the task."""
    model = gated_model(name, dropout=dropout)
    config = quick(record=record, soft_epochs=0.0, max_steps=24, **changes)
    task = beside(keyword_task(), more) if more else keyword_task()
    trainer = Trainer(model, tokenizer_for(name), task, config, method=Ltp, finetune=True, device="cuda")
    state = trainer.fit()
    return {name: value.cpu() for name, value in model.state_dict().items()}, state


@pytest.mark.parametrize("name", ["bert", "roberta", "mpnet", "distilbert", "albert"])
def test_recorded_steps_train_the_same_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, thresholds that the controller moves, and every score on the way; with and without a hidden teacher,
    rows without labels, and the mean of weights."""
    replays: list[int] = []
    original = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(module.torch.cuda.CUDAGraph, "replay", lambda self: (replays.append(1), original(self))[1])
    kept = {"distill_hidden": 0.5, "distill_states": "kept"}
    changes: tuple[dict[str, Any], ...] = ({}, {"distill_hidden": 0.5}, kept, {"average": 0.5}, {"more": 20})
    for more in changes:
        ours, state = trained(name, record=True, **more)
        assert len(replays) > 20, "most steps are replayed"
        replays.clear()
        theirs, wanted = trained(name, record=False, **more)
        assert not replays
        for key, value in theirs.items():
            # A key's bias changes no attention: its gradient is rounding, which Adam blows up.
            if re.search(r"(key|k|k_lin)\.bias$", key):
                continue
            torch.testing.assert_close(ours[key], value, atol=1e-3, rtol=1e-2, msg=lambda text, n=key: f"{n}: {text}")
        assert [row["score"] for row in state.history] == pytest.approx([row["score"] for row in wanted.history])


def test_recorded_dropout_is_new_in_every_step_and_the_same_in_every_run() -> None:
    first, _ = trained(record=True, dropout=0.3)
    again, _ = trained(record=True, dropout=0.3)
    other, _ = trained(record=True, dropout=0.3, seed=5)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_recorded_steps_see_what_lat_draws_for_them() -> None:
    """The same lengths and layers as steps that torch runs one by one, so the same model."""
    from thresher.baselines import method_named

    assert method_named("lat").recordable and not method_named("random").recordable
    found = []
    for record in (True, False):
        model = gated_model(dropout=0.0)
        config = quick(method="lat", search_rounds=0, max_steps=24, record=record)
        trainer = Trainer(
            model, tiny_tokenizer(), keyword_task(), config, method=method_named("lat"), device="cuda", finetune=True
        )
        trainer.fit()
        assert gates_of(model).mode == "hard"
        found.append({name: value.cpu() for name, value in model.state_dict().items()})
    ours, theirs = found
    for key, value in theirs.items():
        if not key.endswith("key.bias"):
            torch.testing.assert_close(ours[key], value, atol=1e-3, rtol=1e-2, msg=lambda text, n=key: f"{n}: {text}")


def test_gradients_of_masked_attention_are_finite_far_below_zero() -> None:
    """64 tokens whose logits are all about -120: cuDNN's backward pass gives NaN for the queries."""
    torch.manual_seed(0)
    parts = [torch.randn(1, 1, 64, 64, device="cuda", dtype=torch.bfloat16) * size for size in (0.1, 0.1, 1.0)]
    query, key, value = parts
    query[..., 0], key[..., 0] = 1.0, -120.0 * 8
    for part in parts:
        part.requires_grad_()
    mask = torch.ones(64, 64, dtype=torch.bool, device="cuda").tril()[None, None]
    with module.without_cudnn_attention():
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    out.backward(torch.randn_like(out))
    assert all(part.grad is not None and bool(torch.isfinite(part.grad).all()) for part in parts)


def test_a_resumed_optimizer_is_all_on_the_gpu() -> None:
    """A fused optimizer's kernel reads its counter of steps there."""
    model = gated_model().to("cuda")
    config = quick()

    def stepped(optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    first = make_optimizer(model, config, lr=1e-3, learn_thresholds=False)
    stepped(first)
    saved = {name: value.cpu() for name, value in optimizer_tensors(model, first).items()}
    again = make_optimizer(model, config, lr=1e-3, learn_thresholds=False)
    restore_optimizer(model, again, saved)
    assert {value.device.type for state in again.state.values() for value in state.values()} == {"cuda"}
    stepped(again)
    assert {float(state["step"]) for state in again.state.values()} == {2.0}
