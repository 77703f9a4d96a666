"""Every family: the gates really fire, off is the stock model, and company or padding change nothing."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thresher
from tests.models.families import (
    FAMILIES,
    LAYERS,
    LENGTHS,
    SEPARATOR,
    SOME,
    WIDTH,
    exact_attention,
    logits_of,
    one,
    prune_with_,
    pruned_model,
    ragged,
    run,
    stock_precision,
    tiny_model,
    trace_of,
)
from thresher.config import PruneConfig
from thresher.models.attach import encoder_shape, gates_of
from thresher.models.gating import Trace

pytestmark = pytest.mark.parametrize("name", FAMILIES)

NOTHING = (-math.inf,) * LAYERS
EVERYTHING = (math.inf,) * LAYERS


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


def close_to_stock(name: str, ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=max(1e-11, stock_precision(name)), rtol=1e-11)


def kept_positions(trace: Trace, row: int) -> list[list[int]]:
    """The tokens of one sequence that each layer leaves."""
    return [alive[row].nonzero().flatten().tolist() for alive in trace.alive[1:]]


# --- the gates fire --------------------------------------------------------------------------------------------------


def test_gates_fire(name: str) -> None:
    model = tiny_model(name, attention=exact_attention(name))
    inputs = ragged(model)
    dense = logits_of(model, inputs)
    prune_with_(model)
    pruned, trace = run(model, inputs)
    kept, lengths = trace.kept(), trace.lengths()
    assert lengths.tolist() == list(LENGTHS)
    assert kept.shape == (len(LENGTHS), LAYERS)
    assert (kept[:, 0] < lengths).any() and (kept[:, 1] < kept[:, 0]).any(), "tokens are dropped in more than one layer"
    assert ((kept > 1) & (kept < lengths[:, None])).any(), "and not simply all of them"
    several = lengths > 3
    assert (pruned - dense)[several].abs().amax(dim=-1).min() > 1e-3, "dropped tokens change the logits"
    close_to_stock(name, pruned[lengths == 1], dense[lengths == 1])


def test_decisions_follow_from_the_scores(name: str) -> None:
    """Strictly above the threshold or protected; cumulative; counts are the counts of the decisions."""
    _, trace = run(model := pruned_model(name), ragged(model))
    assert len(trace.scores) == len(trace.gates) == LAYERS and len(trace.alive) == LAYERS + 1
    first = torch.zeros_like(trace.alive[0])
    first[:, 0] = True
    assert torch.equal(trace.protected, first)
    for layer, threshold in enumerate(SOME):
        before, after = trace.alive[layer], trace.alive[layer + 1]
        assert torch.equal(after, before & ((trace.scores[layer] > threshold) | first))
        assert torch.equal(trace.gates[layer], after)
        assert torch.equal(trace.kept()[:, layer], after.sum(dim=-1))
        assert not (after & ~before).any()
        live = before.sum(dim=-1)
        close(trace.scores[layer].sum(dim=-1) / live, torch.ones(len(LENGTHS), dtype=torch.float64))
        assert (trace.scores[layer][~before] == 0).all()


def test_paper_scale_is_the_relative_scale_divided_by_the_length(name: str) -> None:
    inputs = ragged(model := pruned_model(name, NOTHING))
    _, relative = run(model, inputs)
    paper_model = pruned_model(name, (0.0, 0.1, 0.1, 0.1), scale="paper")
    _, paper = run(paper_model, inputs)
    close(paper.scores[0], relative.scores[0] / relative.lengths()[:, None])
    for layer in range(1, LAYERS):
        live = paper.alive[layer]
        close(paper.scores[layer].sum(dim=-1), torch.ones(len(LENGTHS), dtype=torch.float64))
        wanted = live & ((paper.scores[layer] > 0.1) | paper.protected)
        assert torch.equal(paper.alive[layer + 1], wanted)


# --- off, nothing pruned, and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_off_is_the_stock_model_bit_for_bit(name: str, attention: str) -> None:
    if name in ("mpnet", "deberta-v2") and attention == "sdpa":
        pytest.skip("it has one attention implementation")
    if name == "modernbert" and attention == "eager":
        pytest.skip("the stock model gives NaN there for padding that sees no token in its window")
    model = tiny_model(name, attention=attention)
    inputs = ragged(model)
    stock = logits_of(model, inputs)
    prune_with_(model)
    gates_of(model).set_mode("off")
    assert torch.equal(logits_of(model, inputs), stock)
    assert gates_of(model).trace is None
    gates_of(model).set_mode("hard")
    assert not torch.equal(logits_of(model, inputs), stock)


@pytest.mark.parametrize("thresholds", [NOTHING, (0.0,) * LAYERS])
def test_pruning_nothing_is_the_stock_model(name: str, thresholds: tuple[float, ...]) -> None:
    model = tiny_model(name, attention=exact_attention(name))
    inputs = ragged(model)
    with torch.no_grad():
        stock = model(**inputs, output_hidden_states=True)
        prune_with_(model, thresholds)
        ours = model(**inputs, output_hidden_states=True)
    assert torch.equal(trace_of(model).kept(), trace_of(model).lengths()[:, None].expand(-1, LAYERS))
    close_to_stock(name, ours.logits, stock.logits)
    live = inputs["attention_mask"].bool()
    for mine, theirs in zip(ours.hidden_states, stock.hidden_states, strict=True):
        close_to_stock(name, mine[live], theirs[live])


def test_dropout_falls_where_the_stock_model_drops(name: str) -> None:
    """In training with the same seed, every dropout of the layer draws the same mask as the stock layer's."""
    model = tiny_model(name, attention=exact_attention(name), dropout=0.3).train()
    inputs = ragged(model)
    torch.manual_seed(1)
    stock = logits_of(model, inputs)
    prune_with_(model, NOTHING)
    torch.manual_seed(1)
    close_to_stock(name, logits_of(model, inputs), stock)
    torch.manual_seed(2)
    assert (logits_of(model, inputs) - stock).abs().max() > 1e-3


def test_scores_are_taken_before_dropout(name: str) -> None:
    changes = {"attention_dropout" if name in ("distilbert", "modernbert") else "attention_probs_dropout_prob": 0.9}
    inputs = ragged(model := pruned_model(name, NOTHING, changes=changes))
    with torch.no_grad():
        calm = model(**inputs, output_hidden_states=True).hidden_states[1]
        scores = trace_of(model).scores[0]
        shaken = model.train()(**inputs, output_hidden_states=True).hidden_states[1]
    assert (shaken - calm).abs().max() > 0.1, "attention dropout is at work"
    close(trace_of(model).scores[0], scores)


def test_unprune_restores_everything(name: str) -> None:
    model = tiny_model(name)
    inputs = ragged(model)
    stock = logits_of(model, inputs)
    keys = list(model.state_dict())
    classes = [type(module) for module in model.modules()]
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    for _ in range(2):
        thresher.prune_(model, PruneConfig())
        assert [key for key in model.state_dict() if key not in keys] == [
            f"{model.base_model_prefix}.thresher_gates.thresholds"
        ]
        logits_of(model, inputs)
        thresher.unprune_(model)
    assert torch.equal(logits_of(model, inputs), stock)
    assert list(model.state_dict()) == keys
    assert [type(module) for module in model.modules()] == classes
    assert {path: set(vars(module)) for path, module in model.named_modules()} == attributes
    assert not model.base_model._forward_pre_hooks


def test_hidden_states_are_available(name: str) -> None:
    """One more than layers, as stock; the first layer's output is dense, because its tokens die after attention."""
    model = tiny_model(name, attention=exact_attention(name))
    inputs = ragged(model)
    with torch.no_grad():
        stock = model(**inputs, output_hidden_states=True).hidden_states
        prune_with_(model)
        ours = model(**inputs, output_hidden_states=True).hidden_states
        final = model.base_model(**inputs).last_hidden_state
    assert len(ours) == len(stock) == LAYERS + 1
    assert all(state.shape == (len(LENGTHS), max(LENGTHS), WIDTH) for state in ours)
    live = inputs["attention_mask"].bool()
    for layer in (0, 1):
        close_to_stock(name, ours[layer][live], stock[layer][live])
    assert (ours[2][live] - stock[2][live]).abs().max() > 1e-3
    assert torch.equal(ours[-1], final)


# --- a sequence is judged by itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["relative", "paper"])
def test_company_and_padding_change_nothing(name: str, scale: str) -> None:
    """Alone, in a ragged batch, and in a batch padded by nine more: same scores, same decisions, same logits."""
    thresholds = SOME if scale == "relative" else (0.05, 0.1, 0.12, 0.2)
    model = pruned_model(name, thresholds, scale=scale)
    together, wide = ragged(model), ragged(model, extra=9)
    logits, trace = run(model, together)
    wide_logits, wide_trace = run(model, wide)
    close(wide_logits, logits)
    for row, length in enumerate(LENGTHS):
        alone_logits, alone = run(model, one(together, row))
        close(alone_logits[0], logits[row])
        assert kept_positions(alone, 0) == kept_positions(trace, row) == kept_positions(wide_trace, row)
        for layer in range(LAYERS):
            close(alone.scores[layer][0], trace.scores[layer][row, :length])
            close(alone.scores[layer][0], wide_trace.scores[layer][row, :length])
    assert (trace.kept()[0] < LENGTHS[0]).any()


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=5),
    extra=st.integers(0, 5),
    seed=st.integers(0, 50),
    thresholds=st.lists(st.floats(0.3, 1.3), min_size=LAYERS, max_size=LAYERS),
)
def test_any_batch(name: str, lengths: list[int], extra: int, seed: int, thresholds: list[float]) -> None:
    model = pruned_model(name, thresholds)
    inputs = ragged(model, lengths, extra=extra, seed=seed)
    logits, trace = run(model, inputs)
    kept = torch.cat([trace.lengths()[:, None], trace.kept()], dim=1)
    assert (kept[:, 1:] <= kept[:, :-1]).all() and (kept >= 1).all()
    assert all(alive[:, 0].all() for alive in trace.alive)
    for row in range(len(lengths)):
        alone_logits, alone = run(model, one(inputs, row))
        close(alone_logits[0], logits[row])
        assert kept_positions(alone, 0) == kept_positions(trace, row)


# --- protection ------------------------------------------------------------------------------------------------------


def test_last_layer_collapses_without_loss(name: str) -> None:
    inputs = ragged(model := pruned_model(name, (*SOME[:-1], -math.inf)))
    open_logits, open_trace = run(model, inputs)
    gates_of(model).set_thresholds((*SOME[:-1], math.inf))
    shut_logits, shut_trace = run(model, inputs)
    assert torch.equal(open_logits, shut_logits)
    assert (open_trace.kept()[:, -1] > 1).any() and (shut_trace.kept()[:, -1] == 1).all()


def test_default_thresholds_are_the_ramp(name: str) -> None:
    thresher.prune_(model := tiny_model(name), PruneConfig(final_threshold=0.9))
    torch.testing.assert_close(gates_of(model).thresholds.detach(), torch.tensor([0.0, 0.3, 0.6, math.inf]))
    assert gates_of(model).mode == "hard" and not gates_of(model).thresholds.requires_grad


@pytest.mark.parametrize(
    ("protect", "wanted"),
    [
        (("first",), [[0], [0]]),
        (("first", "separators"), [[0, 3, 8], [0, 4]]),
        (("first", "first_segment"), [[0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        (("separators", "first_segment"), [[0, 1, 2, 3, 8], [0, 1, 2, 3, 4]]),
    ],
)
def test_only_protected_tokens_survive_infinite_thresholds(
    name: str, protect: tuple[str, ...], wanted: list[list[int]]
) -> None:
    model = pruned_model(name, EVERYTHING, protect=protect, separator_id=SEPARATOR)
    inputs = ragged(model, (9, 5))
    inputs["input_ids"][0, [3, 8]] = SEPARATOR
    inputs["input_ids"][1, 4] = SEPARATOR
    _, trace = run(model, inputs)
    for row in range(2):
        assert kept_positions(trace, row) == [wanted[row]] * LAYERS


def test_protecting_nothing_still_leaves_a_token(name: str) -> None:
    """The token with the highest score of the first layer, which is not always the first one."""
    model = pruned_model(name, EVERYTHING, protect=("none",))
    logits, trace = run(model, ragged(model))
    assert logits.isfinite().all()
    assert (trace.kept() == 1).all()
    best = trace.scores[0].argmax(dim=-1)
    assert torch.equal(trace.alive[1].long().argmax(dim=-1), best)
    assert (best > 0).any()


def test_first_token_may_die_without_protection(name: str) -> None:
    model = pruned_model(name, (1.0,) * LAYERS, protect=("none",))
    _, trace = run(model, ragged(model, (16,) * 8))
    assert not all(alive[:, 0].all() for alive in trace.alive)


# --- shape, copies, arithmetic ---------------------------------------------------------------------------------------


def test_encoder_shape(name: str) -> None:
    shape = encoder_shape(tiny_model(name))
    assert (shape.layers, shape.width, shape.ffn_width) == (LAYERS, WIDTH, 48)


def test_copies_are_independent(name: str) -> None:
    model = pruned_model(name)
    inputs = ragged(model)
    gates_of(model).set_mode("soft")
    model(**inputs)  # leaves a trace with graph tensors, which cannot be copied
    twin = copy.deepcopy(model)
    assert gates_of(twin) is not gates_of(model) and gates_of(twin).trace is None
    for each in (model, twin):
        gates_of(each).set_mode("hard")
    before, _ = run(model, inputs)
    twin_before, _ = run(twin, inputs)
    assert torch.equal(before, twin_before)
    gates_of(twin).set_thresholds(EVERYTHING)
    shut, trace = run(twin, inputs)
    assert (trace.kept() == 1).all() and not torch.equal(shut, before)
    again, trace = run(model, inputs)
    assert torch.equal(again, before) and (trace.kept() > 1).any()
    thresher.unprune_(twin)
    assert torch.equal(logits_of(model, inputs), before)
    assert not any("thresher" in key for key in twin.state_dict())
    stock = tiny_model(name)
    assert torch.equal(logits_of(twin, inputs), logits_of(stock, inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision_keeps_thresholds_and_scores_in_float32(name: str, dtype: torch.dtype) -> None:
    model: Any = tiny_model(name).float()
    prune_with_(model, (0.1, 0.7001, 0.9001, math.inf))
    model = model.half() if dtype == torch.float16 else model.bfloat16()
    thresholds = gates_of(model).thresholds
    assert next(model.base_model.embeddings.parameters()).dtype == dtype
    assert torch.equal(thresholds.detach(), torch.tensor([0.1, 0.7001, 0.9001, math.inf]))
    assert isinstance(thresholds, torch.nn.Parameter)
    logits, trace = run(model, ragged(model))
    assert logits.dtype == dtype and logits.isfinite().all()
    assert all(scores.dtype == torch.float32 for scores in trace.scores)
    live = trace.alive[2].sum(dim=-1)
    torch.testing.assert_close(trace.scores[2].sum(dim=-1), live.float())
    model.double()
    assert gates_of(model).thresholds.dtype == torch.float64


def test_autocast_keeps_scores_in_float32(name: str) -> None:
    model: Any = tiny_model(name).float()
    prune_with_(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, trace = run(model, ragged(model))
    assert logits.isfinite().all()
    for layer in range(LAYERS):
        assert trace.scores[layer].dtype == torch.float32
        torch.testing.assert_close(trace.scores[layer].sum(dim=-1), trace.alive[layer].sum(dim=-1).float())
