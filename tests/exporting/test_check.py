"""The check of a written file: it passes what is right, refuses what is not, and excuses only ties."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from tests.engine.graphs.running import gated, graph_of
from tests.models.sentences import WORDS
from tests.words import word_tokenizer
from thresher.engine.graphs.build import Form
from thresher.engine.graphs.opened import padded
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import Weights, read_weights
from thresher.errors import ModelError
from thresher.exporting.check import Checked, Watched, check_file, texts_to_check
from thresher.exporting.folder import rounded, takes_types, write_graph
from thresher.models.plan import plan_of


def checked(folder: Path, model: Any, *, damage: Any = None, plan: Any = None, **form: Any) -> Checked:
    """Write the graph of a model, perhaps with other numbers in it, and check it against the model itself."""
    weights, tokenizer = read_weights(model), word_tokenizer(WORDS)
    form = {"types": takes_types(weights, tokenizer), "kept": True, **form}
    graph = graph_of(model, plan, **form)
    if damage is not None:
        change(graph, *damage)
    write_graph(graph, folder / "model.onnx")
    texts = texts_to_check(weights, tokenizer, limit=20, pairs=form["types"])
    plans = {dial: plan_of(model, dial=dial) for dial in ((1.0, 0.5) if form.get("dial") else (1.0,))}
    file = folder / "model.onnx"
    return check_file(file, weights, plans, form=Form(**form), texts=texts, counting=file)


def change(graph: Any, name: str, by: float) -> None:
    (found,) = (each for each in graph.graph.initializer if each.name == name)
    values = numpy_helper.to_array(found)
    found.CopyFrom(numpy_helper.from_array((values + by).astype(values.dtype), name))


@pytest.mark.parametrize("reads", [None, "mean"])
@pytest.mark.parametrize("form", [{}, {"one": True}, {"dial": True}])
def test_a_right_file_passes(tmp_path: Path, reads: str | None, form: dict[str, Any]) -> None:
    found = checked(tmp_path, gated("bert", reads=reads), **form)
    assert found.texts == 11 and found.batches >= 11 and found.at_a_threshold == 0
    assert 0 < found.largest_difference <= 1e-5 * max(1, found.largest_output)


@pytest.mark.parametrize("name", ["layer.1.ffn_in.bias", "layer.0.attention.qkv.weight", "head.output.bias"])
def test_other_numbers_are_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="the exported graph is not the engine's model: .*; nothing was written"):
        checked(tmp_path, gated("bert"), damage=(name, 0.01))


def test_other_decisions_are_found(tmp_path: Path) -> None:
    model = gated("bert")
    plan = plan_of(model)
    other = replace(plan, thresholds=(0.7, 0.85, 0.9, 1.0))
    with pytest.raises(ModelError, match=r"kept counts are \[.*\], not \[.*\], for a text of \d+ tokens"):
        checked(tmp_path, model, plan=other)


def test_a_score_at_its_threshold_excuses_other_counts(tmp_path: Path) -> None:
    """With a threshold that is the very score of a token, to the last digit either answer is right."""
    model = gated("bert")
    weights, plan = read_weights(model), plan_of(model)
    texts = texts_to_check(weights, word_tokenizer(WORDS), limit=20, pairs=False)
    watched = Watched(weights, plan)
    seen: list[torch.Tensor] = []
    attend = watched.attend

    def remember(index: int, *rest: Any, **more: Any) -> Any:
        found = attend(index, *rest, **more)
        seen.append(found[1]) if index == 0 else None
        return found

    watched.attend = remember  # type: ignore[method-assign]
    PackedExecutor(watched).compute([ids for ids, _ in texts])
    scores = torch.sort(seen[0]).values
    at = float(scores[len(scores) // 3])
    below, above = (replace(plan, thresholds=(at + step, *plan.thresholds[1:])) for step in (-1e-6, 1e-6))
    write_graph(graph_of(model, below, kept=True), tmp_path / "model.onnx")
    file = tmp_path / "model.onnx"
    found = check_file(file, weights, {1.0: above}, form=Form(kept=True), texts=texts, counting=file)
    assert 1 <= found.at_a_threshold < found.texts


def test_texts_have_all_lengths() -> None:
    weights: Weights = read_weights(gated("bert"))
    texts = texts_to_check(weights, word_tokenizer(WORDS), limit=12, pairs=True)
    lengths = [len(ids) for ids, _ in texts]
    assert {1, 2, 3, 40, weights.positions} <= set(lengths) and max(lengths[:6]) <= 12
    assert any(types is not None and 1 in types for _, types in texts)
    right, left = (padded(texts[:3], types=True, extra=2, left=side) for side in (False, True))
    assert right["attention_mask"][:, -2:].sum() == 0 == left["attention_mask"][:, :2].sum()
    assert np.array_equal(right["attention_mask"].sum(axis=1), left["attention_mask"].sum(axis=1))


def test_large_weights_get_a_file_of_their_own(tmp_path: Path) -> None:
    model = gated("bert").float()
    graph, file = graph_of(model, kept=True), tmp_path / "onnx" / "model.onnx"
    write_graph(graph, file, largest=1000)
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.onnx", "model.onnx_data"]
    weights = read_weights(model)
    texts = texts_to_check(weights, word_tokenizer(WORDS), limit=12, pairs=False)
    found = check_file(file, weights, {1.0: plan_of(model)}, form=Form(kept=True), texts=texts, counting=file)
    assert found.at_a_threshold == 0


def test_rounding_keeps_shared_layers_and_refuses_what_fp16_has_not() -> None:
    weights = read_weights(gated("albert").float())
    halved = rounded(weights)
    assert len({id(layer) for layer in halved.layers}) == 1
    assert torch.equal(halved.word, weights.word.half().float()) and not torch.equal(halved.word, weights.word)
    assert torch.equal(halved.layers[0].qkv.bias, weights.layers[0].qkv.bias)
    with pytest.raises(ModelError, match="a weight of 7e\\+04 is beyond fp16, .*; leave out --fp16-weights"):
        rounded(replace(weights, word=torch.full((3, 2), 70_000.0)))
