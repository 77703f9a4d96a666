"""From texts to tokens, where one bad text harms no other: the one way for training, evaluation and the engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from thresher.errors import is_failure
from thresher.text import FAR, beginning, first_line, half_character, is_blank
from thresher.tokenizing.called import Rows, TextTokenizer
from thresher.tokenizing.tokens import Problem, Tokens, starts_of

EMPTY = Problem("input", "the text is empty; give at least one word")
HALF = Problem("input", "the text holds half a character (a lone surrogate), which no tokenizer can read; remove it")
WANTED = {None: "a string, or two in a tuple", False: "a string", True: "two strings in a tuple"}  # by `pairs`
NOTHING = Problem("nothing", "the text has no tokens; give at least one word")


def read_texts(
    tokenizer: TextTokenizer,
    items: Sequence[Any],
    *,
    limit: int,
    cuts: str = "longest_first",
    pairs: bool | None = None,
) -> Tokens:
    """Texts or (text, pair) tuples of any origin; what is longer than `limit` is shortened and marked.

    `cuts` says where a pair loses its tokens: "longest_first", or "only_second", of the second text. `pairs`: whether
    the model is for pairs of texts, or for single ones, if that is known; the other kind gets a problem. So does what
    would have nothing but special tokens: a prediction would say nothing of the text.
    """
    problems = {i: why for i, item in enumerate(items) if (why := problem_of(item, pairs)) is not None}
    good = items if not problems else [item for i, item in enumerate(items) if i not in problems]
    found = tokens_of(tokenizer, good, limit=limit, cuts=cuts)
    if not problems:
        return found
    places = [i for i in range(len(items)) if i not in problems]
    lengths = np.zeros(len(items), np.int64)
    truncated = np.zeros(len(items), np.bool_)
    lengths[places], truncated[places] = found.lengths, found.truncated
    problems |= {places[number]: problem for number, problem in found.problems.items()}
    return Tokens(found.ids, found.types, starts_of(lengths), truncated, problems)


def tokens_of(tokenizer: TextTokenizer, items: Sequence[Any], *, limit: int | None, cuts: str) -> Tokens:
    """The same for what is known to be text."""
    kinds = {isinstance(item, tuple) for item in items}
    if len(kinds) < 2:
        return _alike(tokenizer, items, limit=limit, cuts=cuts, paired=True in kinds)
    # A tokenizer takes texts or pairs in one call, not both.
    parts, order = [], []
    for paired in (False, True):
        places = [i for i, item in enumerate(items) if isinstance(item, tuple) == paired]
        parts.append(_alike(tokenizer, [items[i] for i in places], limit=limit, cuts=cuts, paired=paired))
        order += places
    joined, back = Tokens.joined(parts), np.argsort(np.asarray(order))
    problems = {order[number]: problem for number, problem in joined.problems.items()}
    return replace(joined.take(back), problems=problems)


def problem_of(item: Any, pairs: bool | None = None) -> Problem | None:
    """Why this cannot be tokenized, or None. `pairs` as in `read_texts`."""
    if isinstance(item, str):
        parts: tuple[Any, ...] = (item,)
    elif not isinstance(item, tuple):
        return Problem("input", f"a {type(item).__name__} is not text; give {WANTED[pairs]}")
    elif len(item) != 2:
        return Problem("input", f"{len(item)} texts in one item; give a text or a pair of texts")
    else:
        parts = item
    if pairs is not None and pairs != (len(parts) == 2):
        own, given = ("pairs of texts", "a single text") if pairs else ("single texts", "a pair of texts")
        why = f"the model is for {own}, and was given {given}; it would answer with confidence and know nothing"
        return Problem("input", why)
    for part in parts:
        if not isinstance(part, str):
            return Problem("input", f"a {type(part).__name__} is not text; give a string")
        if is_blank(part):
            return EMPTY
        if half_character(part) is not None:
            return HALF
    return None


def _alike(tokenizer: TextTokenizer, items: Sequence[Any], *, limit: int | None, cuts: str, paired: bool) -> Tokens:
    """Of texts alone, or of pairs alone."""
    items, cuts = list(items), cuts if paired else "longest_first"
    if limit is None:
        return _flat(_each(tokenizer, items, limit=None, cuts=cuts))
    special = tokenizer.special(paired=paired)
    if special is not None and limit <= special:
        rows = _each(tokenizer, items, limit=None, cuts=cuts)
        why = Problem("room", no_room(limit, special))
        return _flat(replace(rows, problems={i: why for i, ids in enumerate(rows.ids) if len(ids) > limit}))
    far = [] if paired else [i for i, item in enumerate(items) if len(item) > FAR * limit]
    if far and tokenizer.reads_word_by_word():
        return _flat(_of_beginnings(tokenizer, items, far, limit=limit))
    return _flat(_each(tokenizer, items, limit=limit, cuts=cuts))


def _of_beginnings(tokenizer: TextTokenizer, items: list[str], far: list[int], *, limit: int) -> Rows:
    """Ten million characters take minutes to tokenize: of a text far beyond `limit` only a beginning is read, where
    that changes none of the tokens that are left. Of pairs the longer loses more, so that their lengths must be known.
    """
    read = list(items)
    for i in far:
        read[i] = beginning(items[i], limit)
    rows = _each(tokenizer, read, limit=limit, cuts="longest_first")
    # A tokenizer may make nothing of some words; then a beginning is not enough.
    short = [i for i in far if len(read[i]) < len(items[i]) and i not in rows.truncated and i not in rows.problems]
    whole = _each(tokenizer, [items[i] for i in short], limit=limit, cuts="longest_first")
    rows.put(short, whole)
    return rows


def no_room(limit: int, special: int) -> str:
    rule = f"max_length = {limit} leaves no room for text beside {special} special tokens"
    return f"{rule}; give at least {special + 1}, better the length of a typical text"


def _each(tokenizer: TextTokenizer, items: list[Any], *, limit: int | None, cuts: str) -> Rows:
    """One call for all; where it fails, for halves, and theirs, until the text at fault is the only one to fail."""
    if not items:
        return Rows([], None)
    try:
        return tokenizer.encode(items, limit=limit, cuts=cuts)
    except BaseException as error:  # tokenizers raise many kinds, panics too, and none says which text it was
        if not is_failure(error):
            raise
        if len(items) == 1:
            why = Problem("unread", f"the tokenizer cannot read the text: {first_line(error)}")
            return Rows([[]], None, problems={0: why})
    middle = len(items) // 2
    halves = [_each(tokenizer, part, limit=limit, cuts=cuts) for part in (items[:middle], items[middle:])]
    ids = [row for half in halves for row in half.ids]
    typed = any(half.types is not None for half in halves)
    types = [kinds for half in halves for kinds in half.types or [[0] * len(row) for row in half.ids]]
    later = {middle + number: problem for number, problem in halves[1].problems.items()}
    truncated = halves[0].truncated | {middle + number for number in halves[1].truncated}
    return Rows(ids, types if typed else None, truncated, {**halves[0].problems, **later})


def _flat(rows: Rows) -> Tokens:
    """A text of a problem has no tokens, and one without tokens has a problem."""
    ids, types, problems = rows.ids, rows.types, rows.problems
    for number in problems:
        ids[number] = []
        if types is not None:
            types[number] = []
    for number, row in enumerate(ids):
        if not row:
            problems.setdefault(number, NOTHING)
    found = Tokens.of(ids, types)
    found.truncated[list(rows.truncated)] = True
    return replace(found, problems=problems)
