"""Rows whose outputs are of tokens: how they are encoded, what is learned from them, and how they are judged."""

import json
from typing import Any

import numpy as np
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score

from tests.tokenizing.kinds import tokenizer
from thresher.errors import DataError, PredictionError
from thresher.tasks.bootstrap import drawn_drops, observed_drop, paired_drop
from thresher.tasks.encode import NOT_COUNTED, EncodedSet, Span, TokenTags, collate
from thresher.tasks.encode_tokens import encode_for
from thresher.tasks.squad import SQUAD_TASKS
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.tasks.truth import Answers

SPAN = SQUAD_TASKS["squad_v2"]
BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TAGS = TaskSpec("names", "tokens", None, BIO, ("f1",), label_column="tags", means="tags")
CONTEXT = "she wrote it in the year 1923, and its plot is warm. " * 6


def asked(question: str, context: str, *answers: str) -> Example:
    return Example(question, context, Answers(answers, tuple(context.rindex(text) for text in answers)), "article")


def tagged(words: str, tags: str) -> Example:
    own = tuple(words.split())
    return Example(words, None, tuple(BIO.index(tag) for tag in tags.split()), words=own)


QUESTIONS = [
    asked("who wrote it?", CONTEXT, "1923", "1923", "the year 1923"),
    asked("who?", "a warm joke", "joke"),
    asked("who?", "good film"),
    asked("who?", ""),
]
SENTENCES = [
    tagged("don't stop the joke", "B-PER I-PER O B-LOC"),
    tagged("a film " * 20, "O B-LOC " * 20),
    tagged("schön naïve", "O O"),
]


def encoded(spec: TaskSpec, rows: list[Example], *, limit: int = 24) -> EncodedSet:
    return encode_for(spec.means, tokenizer("wordpiece"), rows, max_length=limit, positions=None)


def right_logits(data: EncodedSet, outputs: int) -> np.ndarray:
    """What a model that knows the labels would give."""
    assert data.windows is not None
    found = np.zeros((data.windows.tokens.total, outputs))
    for row, low in zip(data.rows, data.windows.tokens.starts.tolist(), strict=False):
        if isinstance(row.label, Span):
            found[low + row.label.first, 0] = found[low + row.label.last, 1] = 9.0
        if isinstance(row.label, TokenTags):
            for place, tag in enumerate(row.label.values):
                found[low + place, max(tag, 0)] = 5.0
    return found


def test_an_answer_is_in_those_windows_that_have_all_of_it() -> None:
    data = encoded(SPAN, QUESTIONS)
    assert data.windows is not None and data.truncated == 0 and data.max_length == 24
    of_first = [row for row, item in zip(data.rows, data.windows.rows, strict=True) if item == 0]
    assert len(of_first) > 4
    spans = [row.label for row in of_first]
    assert Span(0, 0) in spans  # the answer is the last 1923 of the context: most people gave it
    for row, low, item in zip(data.rows, data.windows.tokens.starts, data.windows.rows, strict=False):
        assert isinstance(row.label, Span)
        if row.label != Span(0, 0):
            start = data.windows.offsets[low + row.label.first, 0]
            end = data.windows.offsets[low + row.label.last, 1]
            assert QUESTIONS[item].pair is not None
            assert str(QUESTIONS[item].pair)[start:end] in ("1923", "joke")
            assert isinstance(QUESTIONS[item].label, Answers) and start in QUESTIONS[item].label.starts  # type: ignore[union-attr]
    batch = collate(data.rows, pad_id=0)
    assert batch["labels"].shape == (len(data.rows), 2) and batch["labels"].dtype.is_floating_point is False


def test_only_the_first_piece_of_a_word_has_its_tag() -> None:
    data = encoded(TAGS, SENTENCES, limit=64)
    assert data.windows is not None
    label = data.rows[0].label
    assert isinstance(label, TokenTags) and len(label.values) == len(data.rows[0].input_ids)
    counted = [tag for tag in label.values if tag != NOT_COUNTED]
    assert counted == [1, 2, 0, 3] and len(label.values) > 6
    batch = collate(data.rows[:2], pad_id=0, pad_to=16)
    assert batch["labels"].shape == batch["input_ids"].shape
    assert (batch["labels"][0, len(label.values) :] == NOT_COUNTED).all()


def test_a_window_counts_no_word_that_began_before_it() -> None:
    data = encoded(TAGS, SENTENCES, limit=12)
    assert data.windows is not None
    for window, row in enumerate(data.rows):
        assert isinstance(row.label, TokenTags)
        first = next(place for place, word in enumerate(data.windows.words[slice(*_bounds(data, window))]) if word >= 0)
        assert (row.label.values[first] == NOT_COUNTED) == bool(data.windows.begins[window])


def _bounds(data: EncodedSet, window: int) -> tuple[int, int]:
    assert data.windows is not None
    low, high = data.windows.tokens.starts[window : window + 2].tolist()
    return low, high


def test_what_knows_the_labels_scores_all() -> None:
    for spec, rows, limit in ((SPAN, QUESTIONS, 24), (TAGS, SENTENCES, 64), (TAGS, SENTENCES, 12)):
        data = encoded(spec, rows, limit=limit)
        task = Task(spec, [], [], {}, "")
        found = task.score(right_logits(data, spec.num_labels), spec.truth(rows, data=data))
        assert found["score"] == found["f1"] == 1.0
        if spec is SPAN:
            assert found["hasans_f1"] == found["noans_f1"] == found["exact"] == found["best_f1"] == 1.0


def test_a_threshold_that_is_given_is_used() -> None:
    data = encoded(SPAN, QUESTIONS)
    logits, task = right_logits(data, 2), Task(SPAN, [], [], {}, "")
    truth = SPAN.truth(QUESTIONS, data=data)
    assert task.score(logits, truth.with_threshold(-1e9))["f1"] == 0.5  # nothing is ever answered
    assert task.score(logits, truth.with_threshold(1e9))["noans_f1"] == 0.5  # an empty context cannot be answered
    assert task.score(logits, truth.with_threshold(1e9))["null_threshold"] == 1e9


@pytest.mark.parametrize("seed", range(4))
def test_f1_of_tags_is_seqevals_and_can_be_drawn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = [
        tagged(" ".join(["film"] * count), " ".join(generator.choice(BIO, count)))
        for count in generator.integers(1, 40, 30).tolist()
    ]
    data = encoded(TAGS, rows, limit=20)
    truth, task = TAGS.truth(rows, data=data), Task(TAGS, [], [], {}, "")
    models = [right_logits(data, 5) + generator.normal(size=(len(data.windows.words), 5)) * 4 for _ in range(2)]  # type: ignore[union-attr]
    gold = [[BIO[tag] for tag in row.label] for row in rows]  # type: ignore[union-attr]
    from thresher.tokenizing.tags import word_tags

    assert data.windows is not None
    for logits in models:
        found = task.score(logits, truth)
        predicted = [[BIO[tag] for tag in one] for one in word_tags(data.windows, logits, [len(r.words) for r in rows])]
        assert found["f1"] == f1_score(gold, predicted)
        assert (found["precision"], found["recall"]) == (
            precision_score(gold, predicted),
            recall_score(gold, predicted),
        )
    drop = observed_drop(TAGS, models[0], models[1], truth)
    assert drop == pytest.approx(task.score(models[0], truth)["f1"] - task.score(models[1], truth)["f1"])
    drawn = drawn_drops(TAGS, models[0], [models[1]], truth, draws=50)
    assert drawn.shape == (50, 1) and abs(float(drawn.mean()) - drop) < 0.1


def test_each_model_is_judged_by_its_own_threshold() -> None:
    data = encoded(SPAN, QUESTIONS)
    logits, truth = right_logits(data, 2), SPAN.truth(QUESTIONS, data=data)
    same = paired_drop(SPAN, logits, logits, truth.with_threshold(0.0))
    assert same.drop == 0.0 and same.rows == 4
    worse = paired_drop(SPAN, logits, logits, truth.with_threshold(0.0), pruned_labels=truth.with_threshold(-1e9))
    assert worse.drop == 0.5 and worse.low >= 0.0


def test_rows_without_labels_are_judged_by_the_dense_model() -> None:
    for spec, rows in ((SPAN, QUESTIONS[:3]), (TAGS, SENTENCES)):
        plain = [Example(row.text, row.pair, None, row.group, row.words) for row in rows]
        data, task = encoded(spec, plain), Task(spec, [], [], {}, "")
        assert all(row.label is None for row in data.rows)
        dense = right_logits(encoded(spec, rows), spec.num_labels)
        truth = spec.truth(plain, dense=dense, data=data)
        assert task.score(dense, truth) == {"agreement": 1.0, "score": 1.0}
        other = task.score(-dense, truth)["agreement"]
        assert other < 1.0
        assert observed_drop(spec, dense, -dense, truth) == pytest.approx(1.0 - other)
        with pytest.raises(DataError, match="rows without labels"):
            spec.truth(plain, data=data)


def test_what_is_refused() -> None:
    data = encoded(SPAN, QUESTIONS)
    logits, task = right_logits(data, 2), Task(SPAN, [], [], {}, "")
    with pytest.raises(ValueError, match="give spec.truth"):
        task.score(logits, SPAN.truth(QUESTIONS))
    with pytest.raises(ValueError, match="and the rows have"):
        task.score(logits[:-1], SPAN.truth(QUESTIONS, data=data))
    logits[3, 0] = np.nan
    with pytest.raises(PredictionError, match="NaN or infinite"):
        task.score(logits, SPAN.truth(QUESTIONS, data=data))
    with pytest.raises(DataError, match="row 1, 'who who who.*: the question has 30 tokens and leaves none"):
        encoded(SPAN, [asked("who " * 30, CONTEXT)])
    with pytest.raises(DataError, match="row 1 has a question, 'who', and no context"):
        encoded(SPAN, [Example("who", None, None)])
    with pytest.raises(ValueError, match="needs names of labels"):
        TaskSpec("names", "tokens", None, (), ("f1",), means="tags")


def test_windows_are_no_longer_than_the_model_can_read() -> None:
    own: Any = {"max_length": None, "positions": 20}
    assert encode_for("span", tokenizer("wordpiece"), QUESTIONS, **own).max_length == 20
    assert encode_for("tags", tokenizer("wordpiece"), SENTENCES, **own).max_length == 20
    assert encode_for("span", tokenizer("wordpiece"), QUESTIONS, max_length=None, positions=512).max_length == 384
    plain = encode_for("tags", tokenizer("wordpiece"), [Example("a film", None, None)], max_length=None, positions=None)
    assert plain.max_length == 512 and json.dumps(plain.rows[0].input_ids)
