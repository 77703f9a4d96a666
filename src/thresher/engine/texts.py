"""Texts to token ids, where one bad text must not harm the others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thresher.errors import is_failure
from thresher.text import FAR, beginning, first_line, half_character, is_blank, reads_word_by_word


@dataclass(frozen=True)
class EncodedText:
    """Token ids without padding, or an error that says why there are none."""

    input_ids: list[int]
    token_types: list[int] | None = None
    truncated: bool = False
    error: str | None = None


def encode_texts(
    tokenizer: Any,
    items: Sequence[str | tuple[str, str]],
    positions: int,
    *,
    cuts: str = "longest_first",
    pairs: bool | None = None,
) -> list[EncodedText]:
    """Tokenize texts or (text, pair) tuples; what is longer than `positions` is truncated and marked.

    `cuts` says where a pair loses its tokens: "longest_first", or "only_second", of the second text. `pairs`: whether
    the model is for pairs of texts, or for single ones, if that is known; the other kind gets an error.

    Where nothing but special tokens would be left, it gets an error: a prediction would say nothing of the text.
    """
    problems = [_problem(item, pairs) for item in items]
    good = [i for i, problem in enumerate(problems) if problem is None]
    found = [EncodedText([], error=problem) for problem in problems]
    for paired in (False, True):  # a tokenizer takes texts or pairs in one call, not both
        chosen = [i for i in good if isinstance(items[i], tuple) == paired]
        read, texts = _enough(tokenizer, {i: items[i] for i in chosen}, positions, cuts)
        for i, text in texts.items():
            found[i] = text
        long = [i for i in chosen if len(found[i].input_ids) > positions]
        if long and (no_room := _no_room(tokenizer, positions, paired=paired)):
            shorter = [EncodedText([], error=no_room) for _ in long]
        else:
            shorter = _call_each(tokenizer, [read[i] for i in long], positions, cuts if paired else "longest_first")
            if paired and cuts == "only_second":  # whole they could be read, so that nothing else is at fault
                full = EncodedText([], error=_FULL.format(positions))
                shorter = [full if text.error or len(text.input_ids) > positions else text for text in shorter]
        for i, text in zip(long, shorter, strict=True):
            found[i] = replace(text, truncated=text.error is None)
    return found


_FULL = "the first text leaves no room for the second within {} tokens; shorten it, or give a larger max_length"


def _enough(
    tokenizer: Any, items: dict[int, Any], positions: int, cuts: str
) -> tuple[dict[int, Any], dict[int, EncodedText]]:
    """What is read of each item, by its number, and its tokens without truncation.

    Ten million characters take minutes to tokenize: of a text far beyond `positions` only a beginning is read, where
    that changes none of the tokens that are left. Of pairs the longer loses more, so that their lengths must be known.
    """
    far = [i for i, item in items.items() if isinstance(item, str) and len(item) > FAR * positions]
    cut = far if far and reads_word_by_word(tokenizer) else []
    read = {**items, **{i: beginning(items[i], positions) for i in cut}}
    found = dict(zip(read, _call_each(tokenizer, list(read.values()), None, cuts), strict=True))
    short = [i for i in cut if len(found[i].input_ids) <= positions]  # a tokenizer may make nothing of some words
    read |= {i: items[i] for i in short}
    found |= zip(short, _call_each(tokenizer, [items[i] for i in short], None, cuts), strict=True)
    return read, found


def _no_room(tokenizer: Any, positions: int, *, paired: bool) -> str | None:
    if not hasattr(tokenizer, "num_special_tokens_to_add"):  # any function may stand in for a tokenizer
        return None
    special = int(tokenizer.num_special_tokens_to_add(pair=paired))
    if positions > special:
        return None
    rule = f"max_length = {positions} leaves no room for text beside {special} special tokens"
    return f"{rule}; give at least {special + 1}, better the length of a typical text"


def _problem(item: Any, pairs: bool | None) -> str | None:
    if not isinstance(item, tuple | str):
        return f"a {type(item).__name__} is not text; give a string, or two in a tuple"
    parts = item if isinstance(item, tuple) else (item,)
    if isinstance(item, tuple) and len(item) != 2:
        return f"{len(item)} texts in one item; give a text or a pair of texts"
    if pairs is not None and pairs != isinstance(item, tuple):
        own, given = ("pairs of texts", "a single text") if pairs else ("single texts", "a pair of texts")
        return f"the model is for {own}, and was given {given}; it would answer with confidence and know nothing"
    for part in parts:
        if not isinstance(part, str):
            return f"a {type(part).__name__} is not text; give a string"
        if is_blank(part):
            return "the text is empty; give at least one word"
        if half_character(part) is not None:
            return "the text holds half a character (a lone surrogate), which no tokenizer can read; remove it"
    return None


def _call_each(tokenizer: Any, items: Sequence[Any], limit: int | None, cuts: str) -> list[EncodedText]:
    """One call for all; where it fails, one by one, so that the text at fault is the only one to fail."""
    try:
        return _call(tokenizer, items, limit, cuts)
    except BaseException as error:  # tokenizers raise many kinds, panics too, and none says which text it was
        if not is_failure(error):
            raise
        if len(items) == 1:
            return [EncodedText([], error=f"the tokenizer cannot read the text: {first_line(error)}")]
        return [found for item in items for found in _call_each(tokenizer, [item], limit, cuts)]


def _call(tokenizer: Any, items: Sequence[Any], limit: int | None, cuts: str) -> list[EncodedText]:
    if not items:
        return []
    paired = isinstance(items[0], tuple)
    found = tokenizer(
        [item[0] if paired else item for item in items],
        [item[1] for item in items] if paired else None,
        padding=False,
        truncation=False if limit is None else cuts,
        max_length=limit,
        return_attention_mask=False,
        verbose=False,
    )
    types = found["token_type_ids"] if "token_type_ids" in found else [None] * len(items)
    no_tokens = EncodedText([], error="the text has no tokens; give at least one word")
    return [EncodedText(ids, kinds) if ids else no_tokens for ids, kinds in zip(found["input_ids"], types, strict=True)]
