"""Number for number against the paper authors' code: 1e-10 in float64, 1e-5 in float32."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle.reference import Case, build_model, load_cases, losses, run, small_cases, whole_cases
from thresher.baselines.topk import retain_shares
from thresher.core.cost import EncoderShape, dense_macs, flops, paper_macs, relative_flops

CASES = load_cases()


def cases(**wanted: Any) -> pytest.MarkDecorator:
    """Parametrize over the cases with these properties."""
    chosen = [
        pytest.param(case, id=case.name)
        for case in CASES
        if all(getattr(case, name) == value for name, value in wanted.items())
    ]
    return pytest.mark.parametrize("case", chosen)


def close(ours: Tensor, theirs: Tensor, case: Case, where: Tensor | None = None) -> None:
    if where is not None:
        ours, theirs = ours[where], theirs[where]
    torch.testing.assert_close(ours, theirs.to(ours.dtype), atol=case.tolerance, rtol=case.tolerance)


def never_empty(case: Case) -> Tensor:
    """(batch,) sequences the reference left at least one token: it can empty one, we never do."""
    return torch.stack([case.io[f"layer{i}.alive_out"].bool().any(dim=-1) for i in range(case.layers)]).all(dim=0)


def test_the_small_cases_are_there_and_are_the_whole_ones() -> None:
    """Hard and soft, float32 and float64, padded length and true length, top-k: nobody has to skip these."""
    small, whole = {case.name: case for case in small_cases()}, {case.name: case for case in whole_cases()}
    assert {(case.soft, case.dtype, case.mean_normalised, case.topk) for case in small.values()} == {
        (False, torch.float32, False, False),
        (False, torch.float64, False, False),
        (False, torch.float64, False, True),
        (True, torch.float64, False, False),
        (True, torch.float64, True, False),
    }
    for name, case in small.items():
        other = whole.get(f"{name}, whole", case)
        assert other.settings == case.settings and other.params.keys() == case.params.keys()
        assert all(torch.equal(other.params[key], value) for key, value in case.params.items())
        assert all(torch.equal(other.io[key], value) for key, value in case.io.items())


@cases()
def test_scores_and_decisions(case: Case) -> None:
    _, trace = run(case, build_model(case), case.offsets())
    compared = 0
    emptied = torch.zeros(len(case.io["labels"]), dtype=torch.bool)
    for i in range(case.layers):
        alive_in, alive_out = case.io[f"layer{i}.alive_in"].bool(), case.io[f"layer{i}.alive_out"].bool()
        if f"layer{i}.scores" in case.io:
            where = alive_in & ~emptied[:, None]
            close(trace.scores[i] / case.unit, case.io[f"layer{i}.scores"], case, where)
            compared += int(where.sum())
        if not case.soft:
            emptied = emptied | ~alive_out.any(dim=-1)
            assert torch.equal(trace.alive[i + 1][~emptied], alive_out[~emptied])
            assert (trace.alive[i + 1][emptied].sum(dim=-1) == 1).all()
    assert compared > 0 or case.topk, "only the top-k case holds no scores"


@cases(topk=True)
def test_shares_of_the_top_k_schedule(case: Case) -> None:
    ours = torch.tensor(retain_shares(case.settings["token_keep_rate"], layers=case.layers), dtype=torch.float64)
    close(ours, case.io["keep_rates"], case)


@cases(soft=True)
def test_soft_masks(case: Case) -> None:
    _, trace = run(case, build_model(case), case.offsets())
    real = case.io["attention_mask"].bool()
    masked = [i for i in range(case.layers) if f"layer{i}.soft_mask" in case.io]
    assert masked
    for i in masked:
        close(trace.gates[i], case.io[f"layer{i}.soft_mask"], case, real)


@cases()
def test_logits_and_hidden_states(case: Case) -> None:
    outputs, trace = run(case, build_model(case), case.offsets())
    alive = never_empty(case)
    held = [i for i in range(case.layers + 1) if f"hidden{i}" in case.io]
    assert case.layers in held, "small cases hold the last states only"
    for i in held:
        hidden = outputs.hidden_states[i]
        before_pruning = i == 0
        living = case.io["attention_mask"] if before_pruning or case.soft else case.io[f"layer{i - 1}.alive_out"]
        close(hidden, case.io[f"hidden{i}"], case, living.bool() & alive[:, None])
    first_lives = case.io[f"layer{case.layers - 1}.alive_out"][:, 0].bool() if not case.soft else alive
    close(outputs.logits, case.io["logits"], case, first_lives & alive)


@cases()
def test_losses_and_gradients(case: Case) -> None:
    """Task loss, regulariser, and every gradient the oracle holds, thresholds included."""
    if not case.settings["mode"].endswith("train") or not never_empty(case).all():
        pytest.skip("the case holds no gradients, or the reference emptied a sequence")
    model, offsets = build_model(case), case.offsets().requires_grad_(case.soft)
    outputs, trace = run(case, model, offsets)
    task, regulariser = losses(case, outputs.logits, trace, offsets)
    total = task + case.settings["lam"] * regulariser if case.soft else task
    close(task, case.io["loss_task"], case)
    close(total, case.io["loss_total"], case)
    if case.soft:
        close(regulariser, case.io["loss_reg"], case)
    total.backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = {name.removeprefix("grad."): value for name, value in case.io.items() if name.startswith("grad.")}
    assert gradients
    for name, theirs in gradients.items():
        if "pruner" in name:
            assert offsets.grad is not None
            close(offsets.grad[int(name.split(".")[3])], theirs, case)
        else:
            gradient = ours[name]
            assert gradient is not None
            close(gradient, theirs, case)


@cases(soft=False)
def test_macs(case: Case) -> None:
    if "macs" not in case.io:
        pytest.skip("the case holds no MACs")
    ffn_width = case.params["roberta.encoder.layer.0.intermediate.dense.weight"].shape[0]
    shape = EncoderShape(layers=case.layers, width=case.settings["d"], ffn_width=ffn_width)
    lengths, kept = case.io["attn_lengths"][0], case.io["ffn_lengths"].T
    assert torch.equal(paper_macs(shape, lengths, kept), case.io["macs"])
    assert torch.equal(dense_macs(shape, lengths), case.io["baseline_macs"])
    torch.testing.assert_close(relative_flops(shape, lengths, kept).float(), case.io["relative_flops"])
    torch.testing.assert_close(flops(paper_macs(shape, lengths, kept)).float().mean() / 1e9, case.io["gflops"])
    _, trace = run(case, build_model(case), case.offsets())
    alive = never_empty(case)
    assert torch.equal(trace.kept()[alive], kept[alive])


class ReferenceAdamW(torch.optim.Optimizer):
    """AdamW as the reference's library had it: eps is added before the bias correction, no weight decay."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            mean, square, steps = state.get("state", (torch.zeros_like(parameter), torch.zeros_like(parameter), 0))
            mean, square, steps = mean.lerp(parameter.grad, 0.1), square.lerp(parameter.grad**2, 0.001), steps + 1
            state["state"] = (mean, square, steps)
            size = self.param_groups[0]["lr"] * (1 - 0.999**steps) ** 0.5 / (1 - 0.9**steps)
            parameter -= size * mean / (square.sqrt() + 1e-8)


@cases(soft=True)
def test_training_trace(case: Case) -> None:
    """Five optimizer steps on one batch give the reference's losses and thresholds."""
    if "trace.loss" not in case.io:
        pytest.skip("the case holds no training trace")
    model, offsets = build_model(case), case.offsets().requires_grad_(True)
    weights = [parameter for name, parameter in model.named_parameters() if "thresher" not in name]
    optimizer = ReferenceAdamW([*weights, offsets], lr=case.settings["lr"])
    steps = len(case.io["trace.loss"])
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = case.settings["lr"] * (steps - step) / steps
        outputs, trace = run(case, model, offsets)
        task, regulariser = losses(case, outputs.logits, trace, offsets)
        total = task + case.settings["lam"] * regulariser
        close(total, case.io["trace.loss"][step], case)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_([*weights, offsets], 1.0)
        optimizer.step()
        theirs = case.io["trace.thresholds"][step]
        prunes = torch.tensor([f"layer{i}.scores" in case.io for i in range(case.layers)])
        close(case.io["threshold_base"].to(case.dtype) + offsets.detach(), theirs, case, prunes)
