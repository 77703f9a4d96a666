"""What fails for one text, or for one batch, harms no other; far too long texts and impossible paths cost nothing."""

from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.models.families import tiny_model
from tests.tasks.test_long_texts import CORPUS
from tests.tasks.test_long_texts import tokenizer as trained_tokenizer
from thresher.engine import texts as module
from thresher.engine.engine import Engine
from thresher.engine.executor import Output
from thresher.errors import ModelError

TEXTS = ["good film", "bad bad film", "film", "good bad good film film", "a b c d e f g"] * 3


def make_engine(tokenizer: Any = None) -> Engine:
    return Engine.from_model(tiny_model("bert"), tokenizer or tiny_tokenizer(), device="cpu", dtype="fp32")


class Failing:
    """An executor that raises for the batches that `fails` names, by their texts' lengths, and counts its calls."""

    def __init__(self, inner: Any, fails: Any, error: BaseException) -> None:
        self.inner, self.fails, self.error, self.calls = inner, fails, error, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pack(self, ids: Sequence[Sequence[int]], types: Any = None) -> Any:
        return [len(one) for one in ids], self.inner.pack(ids, types)

    def run(self, packed: Any) -> Output:
        lengths, inner = packed
        self.calls += 1
        if self.fails(lengths):
            raise self.error
        return self.inner.run(inner)  # type: ignore[no-any-return]


def failing_engine(fails: Any, error: BaseException) -> tuple[Engine, Failing]:
    engine = make_engine()
    executor = Failing(engine.executor, fails, error)
    engine._stream.executor = executor
    return engine, executor


def test_a_batch_too_large_for_the_memory_is_computed_in_parts() -> None:
    expected = make_engine().classify(TEXTS)
    engine, executor = failing_engine(lambda lengths: len(lengths) > 2, MemoryError())
    found = engine.classify(TEXTS)
    assert [item.label for item in found] == [item.label for item in expected] and executor.calls > len(TEXTS) // 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_text_that_cannot_be_computed_harms_only_itself(error: Exception) -> None:
    longest = 2 + len("a b c d e f g".split())
    engine, _ = failing_engine(lambda lengths: longest in lengths, error)
    for found, text in zip(engine.classify(TEXTS), TEXTS, strict=True):
        if text == "a b c d e f g":
            why = str(error) or "MemoryError"
            assert found.label is None and found.error == f"the text cannot be computed: {why}"
            assert found.tokens == longest
        else:
            assert found.label and found.error is None


def test_all_texts_of_a_window_and_the_windows_after_it() -> None:
    engine, executor = failing_engine(lambda lengths: executor.calls <= 3, RuntimeError("lost"))
    found = list(engine.predict(["film"] * 6, window=2))
    assert [item.error for item in found] == ["the text cannot be computed: lost"] * 2 + [None] * 4


def test_ctrl_c_is_no_failure_of_a_text() -> None:
    engine, _ = failing_engine(lambda lengths: True, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.classify(TEXTS)


def test_a_word_far_outside_a_vocabulary_with_holes() -> None:
    """Their number does not tell: the batch fails when it is packed, beside the computing."""
    inner = tiny_tokenizer()

    class Sparse:
        def __len__(self) -> int:
            return len(inner)

        def __call__(self, texts: list[str], pairs: Any = None, **settings: Any) -> Any:
            found = inner(texts, pairs, **settings)
            found["input_ids"] = [
                [99_999] if text == "far" else ids for text, ids in zip(texts, found["input_ids"], strict=True)
            ]
            return found

    found = list(make_engine(Sparse()).predict(["film", "far", "good film"] * 2, window=3))
    for item, far in zip(found, (False, True, False) * 2, strict=True):
        assert (item.label is None) == far and ("99999" in str(item.error).replace(",", "")) == far


def test_a_panic_of_the_tokenizer_harms_only_its_text() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("(a|a|aa)+$"), "isolated"), tokenizer.backend_tokenizer.pre_tokenizer]
    )
    with pytest.raises(BaseException) as raised:  # noqa: B017, PT011  # a panic is no Exception, which is the point
        tokenizer("a" * 40 + "!")
    assert type(raised.value).__name__ == "PanicException"
    good, bad, other = make_engine(tokenizer).classify(["good film", "a" * 40 + "!", "film"])
    assert good.label and other.label and "the tokenizer cannot read the text" in str(bad.error)


def test_little_is_read_of_a_text_far_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    real = module._call

    def call(given: Any, items: Any, *rest: Any) -> Any:
        lengths.extend(len(item) for item in items)
        return real(given, items, *rest)

    tokenizer, text = trained_tokenizer("uncased"), " ".join(CORPUS * 5000)
    (whole,) = real(tokenizer, [text], 6, "longest_first")
    monkeypatch.setattr(module, "_call", call)
    (found,) = module.encode_texts(tokenizer, [text], 6)
    assert found.input_ids == whole.input_ids and found.truncated and max(lengths) < 1000


def test_a_beginning_with_too_few_tokens_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, text = trained_tokenizer("uncased"), "a good film " * 100
    expected = module.encode_texts(tokenizer, [text, "film"], 1000)
    monkeypatch.setattr(module, "FAR", 0)
    monkeypatch.setattr(module, "beginning", lambda text, tokens: text[:3])
    assert module.encode_texts(tokenizer, [text, "film"], 1000) == expected


@pytest.mark.parametrize(
    ("path", "says"),
    [("x" * 300, "too long"), ("~nouser/a", "~nouser/a"), ("a\0b", "NUL"), ("x/" * 3000, "too long")],
)
def test_what_can_be_no_path_is_one_clear_error(path: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Engine.load(path)
