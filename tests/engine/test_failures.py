"""What fails for one text, or for one batch, harms no other; far too long texts and impossible paths cost nothing."""

from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.models.families import tiny_model
from thresher.engine.engine import Engine
from thresher.engine.executor import Output
from thresher.errors import ModelError
from thresher.tokenizing.tokens import Tokens

TEXTS = ["good film", "bad bad film", "film", "good bad good film film", "a b c d e f g"] * 3


def make_engine(tokenizer: Any = None) -> Engine:
    return Engine.from_model(tiny_model("bert"), tokenizer or tiny_tokenizer(), device="cpu", dtype="fp32")


class Failing:
    """An executor that raises for the batches that `fails` names, by their texts' lengths, and counts its calls."""

    def __init__(self, inner: Any, fails: Any, error: BaseException) -> None:
        self.inner, self.fails, self.error, self.calls = inner, fails, error, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pack(self, tokens: Tokens) -> Any:
        return tokens.lengths.tolist(), self.inner.pack(tokens)

    def launch(self, packed: Any) -> Any:
        return packed

    def finish(self, packed: Any) -> Output:
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


def test_a_device_that_is_gone_is_one_error_and_no_texts_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some failures of a GPU every later call fails, too: an error for each text would look like bad texts."""
    engine, executor = failing_engine(lambda lengths: executor.calls > 1, RuntimeError("CUDA error: illegal address"))

    def gone() -> None:
        raise ModelError("the GPU failed and answers nothing any more in this process: CUDA error: illegal address")

    monkeypatch.setattr(executor, "check_alive", gone, raising=False)
    stream, found = engine.predict(["film"] * 6, window=2), []
    with pytest.raises(ModelError, match="answers nothing any more"):
        for item in stream:
            found.append(item)
    assert [item.error for item in found] == [None, None] and executor.calls == 2


INVISIBLE = ("\x00", "\u200b", "\ufeff", "\xad", "\ufffd", "\u3164", " \ufe0f\t")


@pytest.mark.parametrize("text", INVISIBLE)
def test_what_nobody_can_see_is_an_error_wherever_it_comes_in(text: str) -> None:
    engine = make_engine()
    says = "the text is empty; give at least one word"
    assert [item.error for item in engine.classify([text, "film", ("film", text)])] == [says, None, says]
    assert engine.predict_arrays([text]).errors.tolist() == [says]
    assert next(engine.predict(iter([text]), window=1)).error == says


@pytest.mark.parametrize(
    ("path", "says"),
    [("x" * 300, "too long"), ("~nouser/a", "~nouser/a"), ("a\0b", "NUL"), ("x/" * 3000, "too long")],
)
def test_what_can_be_no_path_is_one_clear_error(path: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Engine.load(path)
