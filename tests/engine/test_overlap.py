"""What is read when, which texts share a batch, and results as arrays. Nothing here is timed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.engine.test_stream import alike
from tests.models.families import prune_with_, tiny_model
from thresher.engine.answers import Answers
from thresher.engine.engine import Engine
from thresher.engine.tokenizing import Tokenizing, choose_workers
from thresher.engine.windows import Neighbours, Source, batches_of
from thresher.errors import ConfigError
from thresher.tokenizing.tokens import Tokens

TEXTS = ["good film", "bad bad film", "film", "good bad good film film", "a b c d e f g"]


def make_engine(**options: Any) -> Engine:
    model = tiny_model("bert", **options)
    prune_with_(model)
    return Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32")


class InFlight:
    """An executor that computes like another, but as a GPU does: batches of neighbours, three of them in flight."""

    in_flight, by_length = 3, False

    def __init__(self, inner: Any) -> None:
        self.inner, self.flying, self.most, self.sizes = inner, 0, 0, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def launch(self, packed: Any) -> Any:
        self.flying += 1
        self.most = max(self.most, self.flying)
        self.sizes.append(len(packed.ids.values))
        return packed

    def finish(self, begun: Any) -> Any:
        self.flying -= 1
        return self.inner.run(begun)


@pytest.fixture(scope="module", params=["one at a time", "in flight"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found = make_engine()
    if request.param == "in flight":
        found._stream.executor = InFlight(found.executor)
    return found


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_live_stream_is_answered_before_it_is_read_on(engine: Engine, window: int) -> None:
    """Its next text may come late, or depend on the answer."""
    answered = 0

    def live() -> Iterator[str]:
        for number in range(12):
            assert answered >= number // window * window, f"text {number} was read before the answers to those before"
            yield TEXTS[number % len(TEXTS)]

    for prediction in engine.predict(live(), window=window):
        assert prediction.label
        answered += 1
    assert answered == 12


def test_a_conversation(engine: Engine) -> None:
    """Every text is made of the answer to the one before."""
    said: list[str] = ["film"]
    stream = engine.predict((said[-1] for _ in range(5)), window=1)
    for prediction in stream:
        said.append(f"film {prediction.label}")
    assert len(said) == 6


def test_a_progress_bar_around_a_live_stream_is_live(engine: Engine) -> None:
    """It has a method for its length, and none to give."""
    answered = 0

    class Bar:
        def __iter__(self) -> Iterator[str]:
            for number in range(4):
                assert answered == number
                yield "film"

        def __len__(self) -> int:
            raise TypeError("the total is unknown")

    for _ in engine.predict(Bar(), window=1):
        answered += 1
    assert answered == 4


def test_what_has_a_length_is_read_ahead(engine: Engine) -> None:
    class Counted(list[str]):
        read = 0

        def __iter__(self) -> Iterator[str]:
            for text in super().__iter__():
                self.read += 1
                yield text

    texts = Counted(TEXTS * 20)
    stream = engine.predict(texts, window=4, max_tokens=30)
    next(stream)
    assert 4 < texts.read < len(texts)
    assert len(list(stream)) == len(texts) - 1


def test_a_file_may_be_read_ahead(engine: Engine) -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for text in TEXTS * 20:
            read += 1
            yield text

    stream = engine.predict(lines(), window=4, max_tokens=30, read_ahead=True)
    first = next(stream)
    assert 4 < read < 100
    assert all(map(alike, [first, *stream], engine.classify(TEXTS) * 20))


def test_batches_in_flight_are_full_and_in_order() -> None:
    engine = make_engine()
    expected = engine.classify(TEXTS * 30)
    executor = InFlight(engine.executor)
    engine._stream.executor = executor  # type: ignore[assignment]
    found = list(engine.predict(TEXTS * 30, max_tokens=40))
    assert len(found) == 150 and all(map(alike, found, expected))
    assert executor.most == 3 and executor.flying == 0
    longest = max(item.tokens for item in found)
    assert all(40 - longest < size <= 40 for size in executor.sizes[:-1]), "alike, so that few graphs are needed"


def test_arrays_say_what_predictions_say(engine: Engine) -> None:
    items: list[Any] = [*TEXTS, "", 7, "film " * 100, ("good film", "bad")]
    found, expected = engine.predict_arrays(items, max_tokens=30), engine.classify(items)
    assert isinstance(found, Answers) and len(found) == len(items)
    assert all(map(alike, found, expected)) and alike(found[-1], expected[-1])
    assert found.labels.tolist() == [item.label for item in expected]
    assert found.errors.tolist() == [item.error for item in expected]
    assert found.tokens.tolist() == [item.tokens for item in expected]
    assert found.truncated.tolist() == [item.truncated for item in expected]
    for row, (name_at, item) in enumerate(zip(found.classes.tolist(), expected, strict=True)):
        if item.error is None:
            assert engine.labels[name_at] == item.label and found.kept[row].tolist() == list(item.kept)
            assert found.probabilities[row].tolist() == pytest.approx(list(item.probabilities.values()), abs=1e-5)
        else:
            assert name_at == -1 and not found.kept[row].any() and np.isnan(found.outputs[row]).all()
    assert found.probabilities.dtype == np.float32 and found.values.shape == (0,)
    with pytest.raises(IndexError):
        found[len(items)]


def test_arrays_in_parts(engine: Engine) -> None:
    parts = list(engine.stream_arrays(iter(TEXTS * 4), window=8))
    assert sum(map(len, parts)) == 20 and len(parts) > 1
    assert all(map(alike, Answers.joined(parts), engine.classify(TEXTS * 4)))


@pytest.mark.parametrize(
    ("options", "means"),
    [({"num_labels": 1}, "value"), ({"problem_type": "multi_label_classification"}, "labels")],
)
def test_arrays_of_other_heads(options: dict[str, Any], means: str) -> None:
    engine = make_engine(**options)
    found, expected = engine.predict_arrays([*TEXTS, ""]), engine.classify([*TEXTS, ""])
    assert found.head.means == means and found.classes.shape == (0,)
    assert found.labels.tolist() == [item.labels for item in expected]
    if means == "value":
        assert found.values[:-1].tolist() == pytest.approx([item.value for item in expected[:-1]])
        assert np.isnan(found.values[-1]) and found.probabilities.shape == (6, 0)


def test_no_texts_and_only_bad_ones(engine: Engine) -> None:
    nothing = engine.predict_arrays([])
    assert len(nothing) == 0 and nothing.labels.tolist() == [] and nothing.probabilities.shape == (0, 3)
    assert engine.predict_arrays(["", ""]).labels.tolist() == [None, None]


def test_warm_up_takes_texts_and_sizes(engine: Engine) -> None:
    engine.warm_up(TEXTS, sizes=[(2, 5), (1, 1000)])
    engine.warm_up()
    for sizes in ([(2,)], [3], 7):
        with pytest.raises(ConfigError, match="are not pairs; give"):
            engine.warm_up(sizes=sizes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sizes = 0 is below 1"):
        engine.warm_up(sizes=[(0, 5)])


@pytest.mark.parametrize(
    ("on_cores", "asked", "fast", "cores", "workers", "why"),
    [
        (True, None, True, 64, 0, "a CPU computes far longer"),
        (False, None, True, 4, 0, "processes pay from 12 cores on, and there are 4"),
        (False, None, True, 16, 14, "a GPU waits for the tokenizer"),
        (False, 3, True, 16, 3, "workers = 3 was asked for"),
        (False, 0, True, 16, 0, "workers = 0 was asked for"),
        (False, 3, False, 16, 0, "called by one thread at a time"),
    ],
)
def test_how_many_processes(on_cores: bool, asked: int | None, fast: bool, cores: int, workers: int, why: str) -> None:
    found, because = choose_workers(asked, on_cores=on_cores, fast=fast, cores=cores)
    assert found == workers and why in because


def test_processes_give_the_same_predictions() -> None:
    model = tiny_model("bert")
    engine = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32", workers=2)
    plain = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32")
    assert engine.describe()["tokenizing"] == "2 processes"
    engine.warm_up()
    items: list[Any] = [*TEXTS * 30, "", 7, ("film", "good")]
    assert all(map(alike, engine.predict(items, window=20), plain.predict(items, window=20)))
    with pytest.raises(ConfigError, match="workers = -1 is below 0"):
        Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32", workers=-1)


def test_whoever_calls_the_tokenizer_changes_nothing(engine: Engine) -> None:
    """A call leaves its truncation and padding in the tokenizer; in another thread, in the middle of a stream, too."""
    engine.tokenizer(TEXTS, truncation=True, padding="max_length", max_length=3)
    reader: Any = engine._stream.tokenizing.reader
    assert engine.tokenizer.backend_tokenizer.truncation["max_length"] == 3
    assert reader.inner.truncation is None and reader.inner.padding is None


def test_rules_in_python_stay_in_this_process() -> None:
    class BySpaces:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda number, part: part.split(" ", "removed"))

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(BySpaces())
    tokenizing = Tokenizing(tokenizer, on_cores=True, limit=8, cuts="longest_first", pairs=None, workers=2)
    assert "rules in Python" in tokenizing.describe()["tokenizing_why"]
    tokenizing.start(wait=True)
    expected = tokenizer(TEXTS, truncation=True, max_length=8)["input_ids"]
    assert [ids for ids, _ in tokenizing.read(TEXTS).rows()] == expected


def test_groups_are_cut_where_a_batch_is_full() -> None:
    groups = Neighbours(10)
    groups.add(Tokens.of([[1] * 4, [2] * 4]))
    assert groups.take(rest=False) is None
    groups.add(Tokens.of([[3] * 4, [4] * 20, [5]]))
    lengths = [found.lengths.tolist() for _ in range(3) if (found := groups.take(rest=False)) is not None]
    assert lengths == [[4, 4], [4], [20]]
    rest = groups.take(rest=True)
    assert rest is not None and rest.lengths.tolist() == [1] and groups.take(rest=True) is None


def test_texts_without_tokens_are_not_held_back() -> None:
    """A stream of bad texts alone never fills a batch, and all of it would be kept until its end."""
    groups = Neighbours(10)
    for _ in range(5):
        groups.add(Tokens.of([[], [], []]))
    found = groups.take(rest=False)
    assert found is not None and len(found) == 15
    assert groups.take(rest=True) is None


def test_batches() -> None:
    tokens = Tokens.of([[1] * 3, [], [1] * 9, [1] * 4])
    assert [each.tolist() for each in batches_of(tokens, 7, by_length=True)] == [[2], [3, 0]]
    assert [each.tolist() for each in batches_of(tokens, 12, by_length=False)] == [[0, 2], [3]]
    assert batches_of(Tokens.of([[]]), 7, by_length=True) == []


def test_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.engine.windows.PIECE_CHARACTERS", 10)
    monkeypatch.setattr("thresher.engine.windows.PIECE_TEXTS", 3)
    source = Source(["a" * 10, ("b" * 5, "c" * 5), "d", "e", "f", "g"], window=100, small=True, ahead=False)
    pieces = []
    while piece := source.piece():
        pieces.append(len(piece))
    assert pieces == [1, 1, 3, 1] and source.ended and source.pauses
