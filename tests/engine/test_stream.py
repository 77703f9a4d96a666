"""Texts in, predictions out: order, windows, bad texts, and agreement with the attached model on real weights."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.models.families import POSITIONS, prune_with_, tiny_model
from thresher.engine.engine import Engine, Prediction
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import gates_of, unprune_
from thresher.models.checkpoint import save

TEXTS = ["good film", "bad bad film", "film", "good bad good film film", "a b c d e f g"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    model = tiny_model("bert")
    prune_with_(model)
    return Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32")


def alike(a: Prediction, b: Prediction) -> bool:
    return (a.label, a.tokens, a.kept, a.error) == (b.label, b.tokens, b.kept, b.error)


def test_order_and_batching_do_not_matter(engine: Engine) -> None:
    alone = [engine.classify([text])[0] for text in TEXTS]
    for max_tokens in (1, 9, 8192):
        for window in (1, 2, 1024):
            found = list(engine.predict(iter(TEXTS), max_tokens=max_tokens, window=window))
            assert all(alike(a, b) for a, b in zip(found, alone, strict=True))
    assert all(item.label is not None and item.probability is not None for item in alone)


def test_a_bad_text_harms_only_itself(engine: Engine) -> None:
    bad: list[Any] = ["", "  ", "half \ud800 character", 7, ("a", "b", "c"), ("a", ""), None]
    found = engine.classify([item for text in zip(bad, TEXTS * 2, strict=False) for item in text])
    assert all(item.error is not None and item.label is None for item in found[0::2])
    alone = engine.classify((TEXTS * 2)[: len(bad)])
    assert all(alike(a, b) for a, b in zip(found[1::2], alone, strict=True))


def test_strange_texts_get_a_result(engine: Engine) -> None:
    found = engine.classify(["\U0001f600\U0001f600", "\x00\x01 film", "word " * 200_000])
    assert all(item.label is not None for item in found)
    assert [item.truncated for item in found] == [False, False, True] and found[2].tokens == engine.max_length


def test_pairs_and_texts_mix(engine: Engine) -> None:
    pair, text = engine.classify([("good film", "bad film"), "good film"])
    assert pair.tokens > text.tokens and pair.label is not None


def test_streams_are_read_lazily(engine: Engine) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "good film"

    stream = engine.predict(endless(), window=4)
    for _ in range(9):
        next(stream)
    assert read <= 16


def test_bad_calls(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_tokens = 0"):
        engine.predict(TEXTS, max_tokens=0)
    with pytest.raises(ConfigError, match="give a list of texts"):
        engine.predict("one text")
    with pytest.raises(ModelError, match="does not exist"):
        Engine.load(tmp_path / "absent")
    assert engine.classify([]) == []


def test_describe_says_why(engine: Engine) -> None:
    about = engine.describe()
    assert (about["backend"], about["dtype"], about["why"]) == ("cpu", "fp32", "fp32 was asked for")
    assert about["score"] == "attention"


def test_regression_gives_values() -> None:
    model = tiny_model("bert", num_labels=1)
    found = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32").classify(TEXTS)
    assert all(item.value is not None and item.label is None for item in found)
    assert torch.tensor([item.value for item in found]).unique().numel() > 1


def test_a_failing_source_gives_what_it_gave_before(engine: Engine) -> None:
    def broken() -> Iterator[str]:
        yield from TEXTS
        raise OSError("the disk is gone")

    stream, found = engine.predict(broken(), window=2), []
    with pytest.raises(OSError, match="the disk is gone"):
        for item in stream:
            found.append(item)
    assert len(found) == len(TEXTS)


def test_a_text_the_tokenizer_fails_on_harms_only_itself() -> None:
    inner = tiny_tokenizer()

    def tokenizer(texts: list[str], pairs: Any = None, **settings: Any) -> Any:
        if any("poison" in text for text in texts):
            raise ValueError("cannot")
        found = inner(texts, pairs, **settings)
        found["input_ids"] = [
            [] if text == "nothing" else ids for text, ids in zip(texts, found["input_ids"], strict=True)
        ]
        return found

    engine = Engine.from_model(tiny_model("bert"), tokenizer, device="cpu", dtype="fp32")
    good, poison, nothing, last = engine.classify(["good film", "poison", "nothing", "film"])
    assert good.label and last.label
    assert poison.error == "the tokenizer cannot read the text: cannot"
    assert nothing.error is not None and "no tokens" in nothing.error


def test_a_tokenizer_is_called_by_one_thread_at_a_time() -> None:
    """Its first call waits for another to come in beside it, and gives up."""
    inner, beside = tiny_tokenizer(), threading.Barrier(2)
    met: list[list[str]] = []

    def tokenizer(texts: list[str], pairs: Any = None, **settings: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            beside.wait(timeout=0.5)
            met.append(texts)
        return inner(texts, pairs, **settings)

    engine = Engine.from_model(tiny_model("bert"), tokenizer, device="cpu", dtype="fp32")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(engine.classify, [[text] for text in TEXTS]))
    assert not met and all(item[0].label for item in found)


def test_threads_may_share_an_engine(engine: Engine) -> None:
    """A tokenizer keeps its truncation as state, which one thread's call must not leave to another's."""
    texts = [["film " * 100], ["good film"]] * 20
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(engine.classify, texts))
    assert [item[0].truncated for item in found] == [True, False] * 20


def test_engines_may_share_a_tokenizer() -> None:
    """Of other lengths, in other threads, and beside a caller who pads with it."""
    model, tokenizer = tiny_model("bert"), tiny_tokenizer()
    limits = (8, 32) * 2
    engines = [Engine.from_model(model, tokenizer, device="cpu", dtype="fp32", max_length=limit) for limit in limits]
    stop = threading.Event()

    def pad() -> None:
        while not stop.is_set():
            tokenizer(["film " * 100, "film"], padding=True, truncation=True, max_length=16)

    with ThreadPoolExecutor(len(limits) + 1) as pool:
        pool.submit(pad)
        try:
            found = [pool.submit(engine.classify, ["film " * 100, "good film"] * 500) for engine in engines]
            lengths = [{item.tokens for item in one.result()} for one in found]
        finally:
            stop.set()
    assert lengths == [{limit, 4} for limit in limits]


def test_a_text_of_which_only_special_tokens_would_be_left() -> None:
    tokenizer = tiny_tokenizer()
    inner = tokenizer.backend_tokenizer
    inner.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))  # [CLS] a [SEP] [SEP] b [SEP]
    model = tiny_model("bert", type_vocab_size=1)
    engine = Engine.from_model(model, tokenizer, device="cpu", dtype="fp32", max_length=4)
    pair, text = engine.classify([("good film", "bad film"), "good film"])
    assert text.label and text.tokens == 4
    assert pair.label is None and not pair.truncated
    assert "max_length = 4 leaves no room for text beside 4 special tokens; give at least 5" in str(pair.error)
    engine = Engine.from_model(model, tokenizer, device="cpu", dtype="fp32", max_length=5)
    (pair,) = engine.classify([("good film", "bad film")])
    assert pair.label and pair.tokens == 5 and pair.truncated


def test_several_labels_at_once() -> None:
    model = tiny_model("bert", problem_type="multi_label_classification").float()
    engine = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32")
    texts = ["good film", "a bad film with a good cast"]
    for text, found in zip(texts, engine.classify(texts), strict=True):
        logits = model(**tiny_tokenizer()(text, return_tensors="pt")).logits[0]
        assert list(found.probabilities) == engine.labels
        assert list(found.probabilities.values()) == pytest.approx(torch.sigmoid(logits).tolist(), abs=1e-5)
        assert found.labels is not None and set(found.labels) == {
            name for name, value in found.probabilities.items() if value >= 0.5
        }
        assert found.label is None and found.probability is None


def test_ctrl_c_ends_the_stream_and_its_thread(engine: Engine) -> None:
    def texts() -> Iterator[str]:
        yield from ["a good film"] * 7
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        list(engine.predict(texts(), window=2))
    stopped_early = engine.predict(iter(["a good film"] * 100), window=2)
    next(stopped_early)
    stopped_early.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_progress_changes_nothing(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["a good film", "", "a bad film"]
    plain = engine.classify(texts)
    for found in (engine.classify(texts, progress=True), list(engine.predict(iter(texts), progress=True))):
        assert all(map(alike, found, plain)) and len(found) == len(plain)
    assert capsys.readouterr().out == ""


class Flaky:
    """Like a cursor of rows: one of them is an error, and then it would go on."""

    def __init__(self) -> None:
        self.read = -1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.read += 1
        if self.read == 3:
            raise ValueError("bad row 3")
        if self.read == 6:
            raise StopIteration
        return TEXTS[self.read % len(TEXTS)]


def test_a_source_that_fails_is_not_read_on(engine: Engine) -> None:
    found: list[Prediction] = []
    source = Flaky()
    with pytest.raises(ValueError, match="bad row 3"):
        for prediction in engine.predict(source, window=2):
            found.append(prediction)  # noqa: PERF402  # what came before the error counts
    assert source.read == 3
    assert all(alike(a, b) for a, b in zip(found, engine.classify(TEXTS[:3]), strict=True))


def test_words_that_the_model_lacks_harm_only_their_text() -> None:
    model, tokenizer = tiny_model("bert"), tiny_tokenizer()
    tokenizer.add_tokens([f"<new{i}>" for i in range(80)])  # and no resize_token_embeddings
    engine = Engine.from_model(model, tokenizer, device="cpu", dtype="fp32")
    good, bad, other = engine.classify(["good film", "a <new79> film", "bad film"])
    assert good.label and other.label and bad.label is None
    assert f"outside the model's vocabulary of {model.config.vocab_size}" in str(bad.error)


def test_segments_that_the_model_does_not_tell_apart() -> None:
    engine = Engine.from_model(tiny_model("bert", type_vocab_size=1), tiny_tokenizer(), device="cpu", dtype="fp32")
    pair, text = engine.classify([("good film", "bad film"), "good film"])
    assert text.label and pair.label is None and "token type 1 is not one of the model's 1" in str(pair.error)


def test_a_prediction_that_is_not_a_number_is_an_error() -> None:
    model = tiny_model("bert").float()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.output.dense.weight.mul_(1e5)  # a norm follows: harmless in fp32, too large for fp16
    exact = Engine.from_model(model, tiny_tokenizer(), device="cpu", backend="reference", dtype="fp32")
    half = Engine.from_model(model, tiny_tokenizer(), device="cpu", backend="reference", dtype="fp16")
    assert exact.classify(TEXTS[:1])[0].label is not None
    (found,) = half.classify(TEXTS[:1])
    assert found.error == "the prediction is not a number in fp16"
    assert found.label is None and found.probability is None and found.tokens > 0


def test_texts_are_as_long_as_in_training(tmp_path: Path) -> None:
    """What eval, explain and quantize measured is what the engine computes."""
    model, tokenizer = tiny_model("bert"), tiny_tokenizer()
    prune_with_(model)
    save(model, tokenizer, tmp_path / "run", about={"recipe": {"max_length": 8}})
    long = " ".join(["film"] * 20)
    for limit, tokens in ((None, 8), (12, 12)):
        engine = Engine.load(tmp_path / "run", device="cpu", dtype="fp32", max_length=limit)
        (found,) = engine.classify([long])
        assert (found.tokens, found.truncated, engine.describe()["max_length"]) == (tokens, True, tokens)
    for limit in (3, 0):
        with pytest.raises(ConfigError, match=f"max_length = {limit} is below 4"):
            Engine.load(tmp_path / "run", device="cpu", dtype="fp32", max_length=limit)


def test_a_model_in_memory_knows_its_length_in_training() -> None:
    model = tiny_model("bert")
    prune_with_(model)
    gates_of(model).about = {"recipe": {"max_length": 8}}
    for limit, tokens in ((None, 8), (12, 12)):
        engine = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32", max_length=limit)
        assert engine.classify(["film " * 20])[0].tokens == engine.max_length == tokens
    unprune_(model)
    assert Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32").max_length == POSITIONS
