"""Evaluation against a loop over single texts, and everything that must not change its result."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import thresher
from tests.training.tiny import (
    CLASSES,
    LAYERS,
    VALUES,
    gated_model,
    keyword_rows,
    keyword_task,
    sentence,
    stock_model,
    tiny_tokenizer,
    tokenizer_for,
    value_rows,
)
from thresher.core.cost import dense_macs, paper_macs
from thresher.errors import DataError, ModelError
from thresher.evaluation.bootstrap import held_out_drop
from thresher.evaluation.quality import check_outputs, evaluate, outputs_of
from thresher.models.attach import encoder_shape, gates_of, weights_without_gates
from thresher.tasks.task import Example, Task, TaskSpec

SOME = (0.5, 0.8, 1.0, math.inf)
ROWS = 40


def task_of(rows: list[Example], *, spec: Any = CLASSES, **more: list[Example]) -> Task:
    return Task(spec=spec, train=[], selection=[], test={"test": rows, **more}, source="made up")


@pytest.fixture(scope="module")
def rows() -> list[Example]:
    return keyword_rows(ROWS, seed=6)


@pytest.mark.parametrize(
    ("trained_on", "refusal"),
    [
        ({}, None),
        ({"labels": ["bad", "good"], "columns": {"text": "text", "pair": None, "label": "label"}}, None),
        ({"labels": ["BAD", "Good"]}, None),
        ({"labels": ["LABEL_0", "LABEL_1"]}, None),
        ({"labels": ["0", "1"]}, None),
        ({"labels": 3, "columns": "text"}, None),
        ({"labels": ["No", "Yes"]}, "mine has the classes No, Yes, but task keywords has bad, good; give rows"),
        ({"labels": ["good", "bad"]}, "mine has the classes good, bad in this order, but task keywords has bad, good"),
        ({"columns": {"pair": "other"}}, "mine is for pairs of texts, but task keywords has single texts"),
    ],
)
def test_a_run_for_other_rows_is_refused(trained_on: dict[str, Any], refusal: str | None) -> None:
    model, task = stock_model("bert"), task_of([])
    if refusal is None:
        check_outputs(model, task, name="mine", manifest={"task": trained_on})
    else:
        with pytest.raises(DataError, match=f"^{refusal}"):
            check_outputs(model, task, name="mine", manifest={"task": trained_on})


def test_classes_in_another_order_are_not_scored_as_each_other(rows: list[Example]) -> None:
    model, task = gated_model(), task_of(rows)
    model.config.id2label = {0: "Good", 1: "bad"}
    refusal = "the model's classes are in the order Good, bad, the task's in the order bad, good; train a new head"
    with pytest.raises(ModelError, match=refusal):
        check_outputs(model, task, name="mine")
    with pytest.raises(ModelError, match=refusal):
        evaluate(model, tiny_tokenizer(), task)


def test_other_classes_are_refused_as_on_the_command_line(rows: list[Example]) -> None:
    model, task = gated_model(), task_of(rows)
    model.config.id2label = {0: "awful", 1: "fine"}
    with pytest.raises(ModelError, match="the model's classes are awful, fine, the task's bad, good; .*id2label"):
        evaluate(model, tiny_tokenizer(), task)
    named = task_of(rows, spec=replace(CLASSES, class_order="user"))  # who named them in this order knows
    assert evaluate(model, tiny_tokenizer(), named).rows == ROWS
    guessed = task_of(rows, spec=replace(CLASSES, class_order="alphabet"))
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    with pytest.raises(ModelError, match="nothing says which is which; .* --class-names bad,good"):
        evaluate(model, tiny_tokenizer(), guessed)


@torch.inference_mode()
def one_by_one(model: Any, tokenizer: Any, rows: list[Example]) -> tuple[np.ndarray, list[int], list[list[int]]]:
    """Logits, lengths and kept tokens of each text alone, without padding, batches or any of the code under test."""
    model.eval()
    gates_of(model).set_mode("hard")
    logits, lengths, kept = [], [], []
    for row in rows:
        inputs = tokenizer(row.text, row.pair, return_tensors="pt")
        logits.append(model(**inputs).logits[0].numpy())
        trace = gates_of(model).trace
        assert trace is not None
        lengths.append(inputs["input_ids"].shape[1])
        kept.append([int(alive.sum()) for alive in trace.alive[1:]])
    return np.stack(logits), lengths, kept


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_everything_equals_a_loop_over_single_texts(name: str, rows: list[Example]) -> None:
    model, tokenizer = gated_model(name, thresholds=SOME), tokenizer_for(name)
    logits, lengths, kept = one_by_one(model, tokenizer, rows)
    found = evaluate(model, tokenizer, task_of(rows))

    right = sum(int(ours.argmax()) == row.label for ours, row in zip(logits, rows, strict=True))
    assert found.metrics == pytest.approx({"accuracy": right / ROWS, "score": right / ROWS})
    assert (found.split, found.rows, found.truncated) == ("test", ROWS, 0)
    assert found.mean_length == pytest.approx(sum(lengths) / ROWS)
    assert found.kept_per_layer == pytest.approx(np.mean(kept, axis=0).tolist())

    shape = encoder_shape(model)
    spent = dense = engine = engine_dense = 0
    d, f = shape.width, shape.ffn_width
    for length, left in zip(lengths, kept, strict=True):
        seen = [length, *left[:-1]]
        spent += sum(2 * d * n * n + 4 * d * d * n + 2 * d * f * k for n, k in zip(seen, left, strict=True))
        dense += LAYERS * (2 * d * length * length + 4 * d * d * length + 2 * d * f * length)
        # The engine projects keys and values of all, queries and outputs of those it needs: one in the last layer.
        inner = [(n, n, k) for n, k in zip(seen[:-1], left[:-1], strict=True)] + [(seen[-1], 1, 1)]
        whole = [(length, length, length)] * (LAYERS - 1) + [(length, 1, 1)]
        engine += sum(2 * d * n * q + d * d * (2 * n + q + k) + 2 * d * f * k for n, q, k in inner)
        engine_dense += sum(2 * d * n * q + d * d * (2 * n + q + k) + 2 * d * f * k for n, q, k in whole)
    assert 0.3 < spent / dense < 0.9
    assert found.relative_flops == pytest.approx(spent / dense, rel=1e-6)
    assert found.engine_relative_flops == pytest.approx(engine / engine_dense, rel=1e-6)
    assert found.gflops == pytest.approx(2 * spent / ROWS / 1e9, rel=1e-6)
    assert found.gflops_dense == pytest.approx(2 * dense / ROWS / 1e9, rel=1e-6)


def test_the_engine_has_nothing_to_attend_to_after_the_first_infinite_layer() -> None:
    """Three tokens: the first layer asks for the first one only, the others take its value and no more."""
    model = gated_model(thresholds=(math.inf, 0.0, 0.0, 0.0))
    found = evaluate(model, tiny_tokenizer(), task_of([Example("good", None, 1)]))
    d, f = encoder_shape(model).width, encoder_shape(model).ffn_width
    asked = 2 * d * 3 + d * d * (3 + 3 + 1 + 1) + 2 * d * f
    whole = 2 * d * 3 * 3 + d * d * 4 * 3 + 2 * d * f * 3
    spent, dense = asked + 3 * (2 * d * d + 2 * d * f), 3 * whole + asked
    assert found.engine_relative_flops == pytest.approx(spent / dense)


def test_without_pruning_it_is_the_stock_model(rows: list[Example], monkeypatch: pytest.MonkeyPatch) -> None:
    """Same weights, stock code: the very logits, and no numbers about pruning."""
    caught: list[np.ndarray] = []
    original = Task.score

    def spy(self: Task, predictions: Any, labels: Any) -> dict[str, float]:
        caught.append(np.array(predictions))
        return original(self, predictions, labels)

    monkeypatch.setattr(Task, "score", spy)
    found = evaluate(gated_model(thresholds=SOME), tiny_tokenizer(), task_of(rows), pruned=False)
    stock, tokenizer = stock_model().eval(), tiny_tokenizer()
    with torch.inference_mode():
        wanted = np.stack([stock(**tokenizer(row.text, return_tensors="pt")).logits[0].numpy() for row in rows])
    np.testing.assert_allclose(caught[0], wanted, atol=1e-5)
    evaluate(gated_model(thresholds=SOME), tiny_tokenizer(), task_of(rows))
    pruned = next(logits for logits in caught[1:] if len(logits) == ROWS)
    assert np.abs(pruned - wanted).max() > 0.05
    assert found.relative_flops is found.engine_relative_flops is found.kept_per_layer is None
    assert found.gflops == found.gflops_dense
    assert all(part.relative_flops is None for part in found.quartiles)


def test_the_order_of_rows_does_not_matter(rows: list[Example]) -> None:
    model = gated_model(thresholds=SOME)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert shuffled != rows
    ours = evaluate(model, tiny_tokenizer(), task_of(rows)).to_dict()
    theirs = evaluate(model, tiny_tokenizer(), task_of(shuffled)).to_dict()
    assert ours.pop("kept_per_layer") == pytest.approx(theirs.pop("kept_per_layer"))
    assert ours == theirs


def test_labels_stay_with_their_rows(rows: list[Example]) -> None:
    """Batches are sorted by length; a label that stayed behind would show. Labels are what the model itself says."""
    model, tokenizer = gated_model(thresholds=SOME), tiny_tokenizer()
    logits, _, _ = one_by_one(model, tokenizer, rows)
    own = [replace(row, label=int(ours.argmax())) for row, ours in zip(rows, logits, strict=True)]
    assert len({row.label for row in own}) == 2
    assert evaluate(model, tokenizer, task_of(own)).metrics["accuracy"] == 1.0


def test_quartiles_partition_the_rows(rows: list[Example]) -> None:
    model, tokenizer = gated_model(thresholds=SOME), tiny_tokenizer()
    found = evaluate(model, tokenizer, task_of(rows))
    logits, lengths, kept = one_by_one(model, tokenizer, rows)
    parts = found.quartiles
    assert len(parts) == 4
    assert sum(part.rows for part in parts) == ROWS
    assert parts[0].shortest == min(lengths) and parts[-1].longest == max(lengths)
    assert all(part.shortest <= part.longest for part in parts)
    assert all(before.longest < after.shortest for before, after in zip(parts, parts[1:], strict=False))
    shape = encoder_shape(model)
    for part in parts:
        inside = [i for i, length in enumerate(lengths) if part.shortest <= length <= part.longest]
        assert len(inside) == part.rows
        assert part.score == pytest.approx(np.mean([logits[i].argmax() == rows[i].label for i in inside]))
        long, left = torch.tensor([lengths[i] for i in inside]), torch.tensor([kept[i] for i in inside])
        spent = paper_macs(shape, long, left).sum() / dense_macs(shape, long).sum()
        assert part.relative_flops == pytest.approx(spent.item())
    total = sum(part.score * part.rows for part in parts) / ROWS
    assert total == pytest.approx(found.metrics["score"])


def test_rows_of_one_length_are_one_part() -> None:
    rows = [Example("good worda wordb", None, 1), Example("bad wordc wordd", None, 0)] * 3
    found = evaluate(gated_model(), tiny_tokenizer(), task_of(rows))
    assert [(part.rows, part.shortest, part.longest) for part in found.quartiles] == [(6, 5, 5)]


def test_a_row_at_the_edge_belongs_to_the_shorter_part() -> None:
    """Five lengths 3 to 7 have their quartiles at 4, 5 and 6."""
    rows = [Example(" ".join(["good"] * words), None, 1) for words in (4, 1, 5, 2, 3)]
    found = evaluate(gated_model(), tiny_tokenizer(), task_of(rows))
    assert [(part.rows, part.shortest, part.longest) for part in found.quartiles] == [
        (2, 3, 4),
        (1, 5, 5),
        (1, 6, 6),
        (1, 7, 7),
    ]


def test_a_single_row() -> None:
    found = evaluate(gated_model(), tiny_tokenizer(), task_of([Example("good", None, 1)]))
    assert found.rows == 1 and found.mean_length == 3
    assert [part.rows for part in found.quartiles] == [1]


@pytest.mark.parametrize("thresholds", [SOME, (0.0, 0.0, 0.0, 0.0), (math.inf,) * 4, (1.2, 0.1, 0.1, 0.1)])
def test_kept_tokens_never_grow(rows: list[Example], thresholds: tuple[float, ...]) -> None:
    found = evaluate(gated_model(thresholds=thresholds), tiny_tokenizer(), task_of(rows))
    kept = [found.mean_length, *(found.kept_per_layer or [])]
    assert len(kept) == LAYERS + 1
    assert kept == sorted(kept, reverse=True)
    assert min(kept) >= 1
    if math.inf in thresholds[:1]:
        assert kept[1:] == [1.0] * LAYERS
    if max(thresholds) == 0.0:
        assert found.relative_flops == 1.0 and found.engine_relative_flops == 1.0


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["off", "soft", "hard"])
def test_mode_and_training_flag_are_left_as_found(mode: str, training: bool, pruned: bool) -> None:
    model = gated_model(thresholds=SOME)
    gates_of(model).set_mode(mode)
    model.train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = evaluate(model, tiny_tokenizer(), task_of(keyword_rows(4, seed=1)), pruned=pruned)
    assert gates_of(model).mode == mode and model.training is training
    assert all(module.training is training for module in model.modules())
    assert gates_of(model).thresholds.requires_grad == (mode == "soft")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # Whatever the mode and flag, the evaluation is hard and without dropout.
    again = evaluate(
        gated_model(thresholds=SOME).eval(), tiny_tokenizer(), task_of(keyword_rows(4, seed=1)), pruned=pruned
    )
    assert found == again


def test_splits_are_chosen_by_name(rows: list[Example]) -> None:
    task = task_of(rows, other=rows[:10])
    model = gated_model()
    assert evaluate(model, tiny_tokenizer(), task).split == "test"
    found = evaluate(model, tiny_tokenizer(), task, split="other")
    assert (found.split, found.rows) == ("other", 10)


def test_only_test_rows_are_read() -> None:
    """Training and selection rows stay where they are."""

    class Closed(list[Example]):
        def __iter__(self) -> Any:
            raise AssertionError("evaluation has read rows of another split")

        __getitem__ = __len__ = __iter__  # type: ignore[assignment]

    task = replace(keyword_task(), train=Closed(), selection=Closed(), test={"test": keyword_rows(4, seed=1)})
    assert thresher.evaluate(gated_model(), tiny_tokenizer(), task).rows == 4


def test_rows_are_as_long_as_in_training(rows: list[Example]) -> None:
    model, tokenizer = gated_model(), tiny_tokenizer()
    gates_of(model).about = {"recipe": {"max_length": 9}}
    found = evaluate(model, tokenizer, task_of(rows))
    assert found.truncated == sum(len(row.text.split()) + 2 > 9 for row in rows) > 0
    assert evaluate(model, tokenizer, task_of(rows), max_length=512).truncated == 0


def test_truncated_rows_are_counted(rows: list[Example]) -> None:
    found = evaluate(gated_model(), tiny_tokenizer(), task_of(rows), max_length=9)
    assert found.truncated == sum(len(row.text.split()) + 2 > 9 for row in rows) > 0
    assert max(part.longest for part in found.quartiles) == 9


def test_the_models_own_limit_counts_without_a_maximum() -> None:
    found = evaluate(gated_model(), tiny_tokenizer(), task_of([Example("good " * 100, None, 1)]))
    assert found.truncated == 1 and found.mean_length == 40


def test_progress_is_told(rows: list[Example]) -> None:
    told: list[tuple[int, int]] = []
    evaluate(gated_model(), tiny_tokenizer(), task_of(rows), on_batch=lambda done, total: told.append((done, total)))
    assert told == [(i + 1, len(told)) for i in range(len(told))] and told


def test_pairs(rows: list[Example]) -> None:
    pairs = [replace(row, pair=other.text) for row, other in zip(rows, rows[::-1], strict=True)]
    model, tokenizer = gated_model(thresholds=SOME), tiny_tokenizer()
    logits, lengths, _ = one_by_one(model, tokenizer, pairs)
    found = evaluate(model, tokenizer, task_of(pairs))
    assert found.metrics["accuracy"] == pytest.approx(
        np.mean([o.argmax() == r.label for o, r in zip(logits, pairs, strict=True)])
    )
    assert found.mean_length == pytest.approx(np.mean(lengths))


def test_regression() -> None:
    rows = value_rows(20, seed=5)
    model, tokenizer = gated_model(outputs=1, thresholds=SOME), tiny_tokenizer()
    logits, _, _ = one_by_one(model, tokenizer, rows)
    found = evaluate(model, tokenizer, task_of(rows, spec=VALUES))
    wanted = np.corrcoef(logits[:, 0], [row.label for row in rows])[0, 1]
    assert found.metrics["pearson"] == pytest.approx(wanted, abs=1e-5)
    assert found.metrics["score"] == pytest.approx((found.metrics["pearson"] + found.metrics["spearman"]) / 2)


def test_a_report_is_plain_data(rows: list[Example]) -> None:
    import json

    found = evaluate(gated_model(thresholds=SOME), tiny_tokenizer(), task_of(rows)).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_rows_without_labels_are_judged_against_the_dense_model() -> None:
    spec = TaskSpec("pairs", "query", "document", (), ("ndcg@10",), means="score")
    rows = [Example(f"word{'abcd'[i // 4]}", sentence(random.Random(i)), None) for i in range(16)]
    model, task = gated_model(outputs=1, thresholds=(0.7, 0.9, 1.0, 1.2), dropout=0.0), task_of(rows, spec=spec)
    dense = outputs_of(model, tiny_tokenizer(), task, split="test", max_length=None)
    assert evaluate(model, tiny_tokenizer(), task, pruned=False).metrics["score"] == pytest.approx(1.0)
    found = evaluate(model, tiny_tokenizer(), task, dense=dense)
    assert found.metrics["score"] < 0.999 and found.relative_flops is not None
    with pytest.raises(DataError, match="judged by agreement with the dense model; give its outputs"):
        evaluate(model, tiny_tokenizer(), task)
    drop = held_out_drop(model, tiny_tokenizer(), task, weights_without_gates(model), split="test", max_length=None)
    assert drop.drop == pytest.approx(1 - found.metrics["score"], abs=1e-5)


def test_quartiles_of_a_reranker_hold_whole_queries() -> None:
    """A query's documents have many lengths, and a part of them is no ranking."""
    spec = TaskSpec("pairs", "query", "document", (), ("ndcg@10",), means="score")
    rows = [
        Example(f"word{'abcdefgh'[query]}", " ".join(["worda"] * (1 + query + 5 * place)), float(place == query % 3))
        for query in range(8)
        for place in range(3)
    ]
    model = gated_model(outputs=1, thresholds=(0.7, 0.9, 1.0, 1.2), dropout=0.0)
    found = evaluate(model, tiny_tokenizer(), task_of(rows, spec=spec))
    assert [part.rows for part in found.quartiles] == [6, 6, 6, 6]
    scores = [part.score for part in found.quartiles]
    assert np.mean(scores) == pytest.approx(found.metrics["score"]), "each has two queries of the eight"


def test_labelled_pairs_of_embeddings_are_two_sequences_a_row() -> None:
    spec = TaskSpec("texts", "text", "pair", (), ("spearman",), means="embedding")
    draw = random.Random(1)
    rows = [Example(sentence(draw), sentence(draw), float(i % 5)) for i in range(20)]
    model = gated_model(outputs=6, thresholds=(0.7, 0.9, 1.0, 1.2), dropout=0.0, collapse_last=False)
    found = evaluate(model, tiny_tokenizer(), task_of(rows, spec=spec))
    assert found.rows == 20 and sum(part.rows for part in found.quartiles) == 20
    assert found.metrics.keys() == {"spearman", "score"}
    lengths = [len(tiny_tokenizer()(text)["input_ids"]) for row in rows for text in (row.text, row.pair)]
    assert found.mean_length == pytest.approx(np.mean(lengths))
