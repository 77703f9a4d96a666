"""Layers that compute live tokens only give what masked layers give: results, decisions and gradients."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.models.families import FAMILIES, LENGTHS, SOME, WITHOUT_SPANS, prune_with_, pruned_model, ragged, run
from tests.models.sentences import config_of, embedder_folder
from thresher.models.attach import gates_of, pruned_layer
from thresher.models.embedder import load_embedder
from thresher.models.rules import Rule, TopCount, TopShare
from thresher.models.slots import Slots, taken

LONG = (37, 1, 12, 2, 29)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


def widths(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every layer's tensors, filled while the model runs."""
    seen: list[int] = []

    def looking(parts: Any, hidden: Tensor, **rest: Any) -> Tensor:
        seen.append(hidden.shape[1])
        return pruned_layer(parts, hidden, **rest)

    monkeypatch.setattr("thresher.models.attach.pruned_layer", looking)
    return seen


@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("name", FAMILIES)
def test_shortened_layers_give_the_same(name: str, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned_model(name, score=score)
    inputs = ragged(model, LONG)
    seen = widths(model, monkeypatch)
    wanted, masked = run(model, inputs)
    with gates_of(model).shortening():
        found, trace = run(model, inputs)
    assert seen[:4] == [37] * 4 and seen[4] == 37 and seen[-1] < 37, "later layers have shorter tensors"
    close(found, wanted)
    for ours, theirs in zip(trace.alive, masked.alive, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs, alive in zip(trace.scores, masked.scores, masked.alive, strict=False):
        close(ours[alive], theirs[alive])
    assert not gates_of(model).shortens, "only for a while"


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_the_same(name: str) -> None:
    model = pruned_model(name)
    inputs = ragged(model, LONG)
    agree_in_gradients(model, lambda: model(**inputs).logits.square().sum())


def agree_in_gradients(model: Any, loss: Callable[[], Tensor]) -> None:
    """Shortened layers teach every parameter what masked ones do."""
    gradients: list[dict[str, Tensor]] = []
    for shorter in (False, True):
        model.zero_grad()
        gates_of(model).shortens = shorter
        loss().backward()
        gradients.append({key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, value in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][key], value, atol=1e-9, rtol=1e-8, msg=lambda text, k=key: f"{k}: {text}"
        )


def reading_all(name: str, means: str, thresholds: tuple[float, ...]) -> Any:
    """A tiny model whose head reads dropped tokens, too."""
    return pruned_model(name, thresholds, changes={"means": means})


@pytest.mark.parametrize("thresholds", [SOME, (0.0, 0.9, math.inf, math.inf), (math.inf,) * 4])
@pytest.mark.parametrize("means", ["tags", "span"])
@pytest.mark.parametrize("name", FAMILIES)
def test_heads_that_read_dropped_tokens_find_their_states_in_their_places(
    name: str, means: str, thresholds: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if means == "span" and name in WITHOUT_SPANS:
        return
    model = reading_all(name, means, thresholds)
    inputs = ragged(model, LONG)
    real = inputs["attention_mask"].bool()
    seen = widths(model, monkeypatch)
    wanted, masked = run(model, inputs)
    with gates_of(model).shortening():
        found, trace = run(model, inputs)
    assert seen[:5] == [37] * 5 and seen[-1] < 37, "later layers have shorter tensors"
    assert found.shape == wanted.shape and not trace.behind.states
    close(found[real], wanted[real])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(trace.alive, masked.alive, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_such_heads_are_the_same(name: str) -> None:
    model = reading_all(name, "tags", SOME)
    inputs = ragged(model, LONG)
    real = inputs["attention_mask"].bool()
    agree_in_gradients(model, lambda: model(**inputs).logits[real].square().sum())


def test_a_mean_over_all_tokens_is_the_same(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, "bert", pooling={"pooling_mode_mean_tokens": True})
    model = load_embedder(folder, config_of(folder)).double().eval()
    prune_with_(model, SOME)
    inputs = ragged(model, LONG)
    wanted, _ = run(model, inputs)
    with gates_of(model).shortening():
        found, trace = run(model, inputs)
    assert trace.slots is not None and trace.slots.places.shape[1] < 37
    close(found, wanted)


@pytest.mark.parametrize(
    "rule",
    [TopShare([0.8, 0.5, 0.2, -0.1]), TopCount([12, 9, 3, 1]), TopShare([0.7, 0.4, 0.2, 0.1], order="cumulative")],
)
@pytest.mark.parametrize("protect", [("first",), ("first", "separators")])
def test_rules_and_protected_tokens(rule: Rule, protect: tuple[str, ...]) -> None:
    model = pruned_model("bert", protect=protect, separator_id=11 if len(protect) > 1 else None)
    gates_of(model).rule = rule
    inputs = ragged(model, LONG)
    wanted, masked = run(model, inputs)
    with gates_of(model).shortening():
        found, trace = run(model, inputs)
    close(found, wanted)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(trace.alive, masked.alive, strict=True))


def test_left_alone_first_tokens_are_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned_model("mpnet", (0.0, math.inf, math.inf, math.inf))
    seen = widths(model, monkeypatch)
    with gates_of(model).shortening():
        run(model, ragged(model, LONG))
    assert seen == [37, 37, 1, 1]


def test_without_a_protected_first_token_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned_model("bert", protect=("none",))
    seen = widths(model, monkeypatch)
    with gates_of(model).shortening():
        run(model, ragged(model, LONG))
    assert seen == [37] * 4


def test_only_hard_mode_shortens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned_model("bert")
    gates_of(model).set_mode("soft")
    seen = widths(model, monkeypatch)
    with gates_of(model).shortening():
        run(model, ragged(model, LONG))
    assert seen == [37] * 4


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (None, 3),
        (TopShare([1.0, 0.3, 0.0, -0.4]), 2),
        (TopCount([5, 1, 1, 1]), 1),
        (TopCount([5, 4, 3, 2]), 4),
    ],
)
def test_first_alone(rule: Rule | None, wanted: int) -> None:
    model = pruned_model("bert", (0.5, 0.7, 0.9, math.inf))
    gates_of(model).rule = rule
    assert gates_of(model).first_alone() == wanted
    model = pruned_model("bert", (0.5, 0.7, 0.9, math.inf), protect=("first", "separators"), separator_id=11)
    gates_of(model).rule = rule
    assert gates_of(model).first_alone() == 4, "separators stay with it"


def test_a_threshold_of_minus_infinity_keeps_everything() -> None:
    model = pruned_model("bert", (-math.inf,) * 4)
    assert gates_of(model).first_alone() == 4


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_slots_hold_what_was_kept_in_order(lengths: list[int], seed: int, told: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    alive = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    slots, values = Slots.of(alive), torch.rand(alive.shape, generator=generator)
    states = values[:, :, None].expand(-1, -1, 3)
    for share in (0.8, 0.5, 0.0):
        alive = alive & (torch.rand(alive.shape, generator=generator) < share)
        alive[:, 0] = True
        most = int(alive.sum(1).max()) if told else None
        slots, order = slots.narrowed(alive, most=most)
        if order is not None:
            states = taken(states, order[:, : slots.places.shape[1]])
        for row in range(len(lengths)):
            assert slots.places[row][slots.live[row]].tolist() == alive[row].nonzero().flatten().tolist()
        torch.testing.assert_close(slots.spread(states[:, :, 0], alive.shape[1]), values * alive, atol=0, rtol=0)
    assert slots.live.shape[1] == 1


def test_the_head_trains_as_before() -> None:
    """Every parameter of a layer that only first tokens reach still gets a gradient."""
    model: nn.Module = pruned_model("bert", (0.0, math.inf, math.inf, math.inf))
    with gates_of(model).shortening():
        model(**ragged(model, LENGTHS)).logits.sum().backward()
    assert all(value.grad is not None for key, value in model.named_parameters() if "layer.3" in key)
