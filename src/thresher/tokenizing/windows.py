"""Long texts in windows: every window fits the model, neighbours overlap, and each token knows its characters.

The same windows as the library's call with `return_overflowing_tokens` makes, from one pass over each text: tokens are
cut where they lie in the arrays, so that a hundred pages cost what they weigh.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.errors import ConfigError, is_failure
from thresher.text import first_line, half_character
from thresher.tokenizing.called import TextTokenizer
from thresher.tokenizing.fast import FastTokenizer
from thresher.tokenizing.read import EMPTY, HALF, no_room, problem_of
from thresher.tokenizing.tokens import Ints, Places, Problem, Tokens, starts_of

WINDOW = 384  # tokens, with the question and special tokens
OVERLAP = 128  # of the context's tokens, in two neighbouring windows
AT_ONCE = 256  # texts in one call
NOT_THERE = -1
NO_QUESTION = Problem("input", "the question is empty; give at least one word")


@dataclass(frozen=True)
class Windows:
    """tokens: one sequence for each window, item by item; rows: (windows,) the number of the item each is of; items:
    how many there are. An item of `problems` has no window.

    offsets: (total, 2) where a token of the context begins and ends in it, in characters; words: (total,) the number of
    its word there. Both are -1 for all other tokens: special ones, and a question's. begins: (windows,) the number of
    the first of the context's tokens in each window.
    """

    tokens: Tokens
    rows: Places
    items: int
    offsets: Ints
    words: Ints
    begins: Places
    problems: dict[int, Problem] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """(total,) whether a token is of the context."""
        found: NDArray[np.bool_] = self.offsets[:, 0] != NOT_THERE
        return found

    def of_first(self, items: int) -> "Windows":
        """Those of the first items."""
        count = int(np.searchsorted(self.rows, items))
        total = int(self.tokens.starts[count])
        return Windows(
            tokens=self.tokens.between(0, count),
            rows=self.rows[:count],
            items=items,
            offsets=self.offsets[:total],
            words=self.words[:total],
            begins=self.begins[:count],
            problems={item: problem for item, problem in self.problems.items() if item < items},
        )

    def by_item(self) -> Iterator[tuple[int, range]]:
        """Each item that has windows, and their numbers."""
        bounds = np.searchsorted(self.rows, np.arange(self.items + 1)).tolist()
        for item, (low, high) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            if high > low:
                yield item, range(low, high)


@dataclass(frozen=True)
class Cut:
    """One text as it came from the tokenizer; `inner` are the places of the context's tokens, which are neighbours, and
    `parts` what each window has of them, from one number to before another."""

    ids: Ints
    types: Ints
    offsets: Ints
    words: Ints
    inner: Places
    parts: list[tuple[int, int]]


def question_windows(
    tokenizer: TextTokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    limit: int = WINDOW,
    overlap: int | None = None,
) -> Windows:
    """The whole question in every window, the context in pieces. An empty context is one window without any."""
    problems = {}
    for item, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        problem = problem_of(question) or _context_problem(context)
        problem = NO_QUESTION if problem is EMPTY else problem  # an empty context is fine
        if problem is not None:
            problems[item] = problem
    return _windows(tokenizer, list(zip(questions, contexts, strict=True)), problems, limit=limit, overlap=overlap)


def text_windows(tokenizer: TextTokenizer, texts: Sequence[str], *, limit: int, overlap: int | None = None) -> Windows:
    """Texts alone; one that fits is one window."""
    problems = {item: why for item, text in enumerate(texts) if (why := problem_of(text, pairs=False)) is not None}
    return _windows(tokenizer, list(texts), problems, limit=limit, overlap=overlap)


def word_windows(
    tokenizer: TextTokenizer, words: Sequence[Sequence[str]], *, limit: int, overlap: int | None = None
) -> Windows:
    """Texts that are words with a space between two: `words` of the windows are the numbers of these."""
    found = text_windows(tokenizer, [" ".join(one) for one in words], limit=limit, overlap=overlap)
    # Each ends after the space behind it.
    return numbered(found, lambda item: np.cumsum([len(word) + 1 for word in words[item]]))


def numbered(windows: Windows, ends_of: Callable[[int], NDArray[np.integer]]) -> Windows:
    """The same with other words: `ends_of` an item are the characters before which each of its words ends."""
    numbers, starts = windows.words.copy(), windows.tokens.starts
    for item, own in windows.by_item():
        low, high = int(starts[own[0]]), int(starts[own[-1] + 1])
        there = windows.offsets[low:high, 0] != NOT_THERE
        # A token may begin with the space before its word, so that its last character says which word it is of.
        last = np.maximum(windows.offsets[low:high, 1] - 1, windows.offsets[low:high, 0])
        numbers[low:high] = np.where(there, np.searchsorted(ends_of(item), last, side="right"), NOT_THERE)
    return replace(windows, words=numbers)


def overlap_of(limit: int, overlap: int | None) -> int:
    """What is asked for, or a third of a window, 128 at most."""
    if overlap is None:
        return min(OVERLAP, limit // 3)
    if isinstance(overlap, bool) or not 0 <= overlap < limit:
        raise ConfigError(f"overlap = {overlap!r} must be from 0 to {limit - 1}, less than a window of {limit} tokens")
    return overlap


def deciding(windows: Windows) -> NDArray[np.bool_]:
    """(total,) whether this is where a token of the context is read: each in one window, in that where more tokens
    stand around it. Of an overlap the first half is the earlier window's, the second half the later one's."""
    found, starts = windows.inside, windows.tokens.starts
    for _, own in windows.by_item():
        if len(own) == 1:
            continue
        inner = [starts[each] + np.flatnonzero(found[starts[each] : starts[each + 1]]) for each in own]
        begins = windows.begins[own.start : own.stop]
        ends = begins + [len(places) for places in inner]
        turns = np.concatenate([[0], begins[1:] + (ends[:-1] - begins[1:] + 1) // 2, ends[-1:]])
        for number, places in enumerate(inner):
            numbers = begins[number] + np.arange(len(places))
            found[places] = (numbers >= turns[number]) & (numbers < turns[number + 1])
    return found


def token_span(offsets: NDArray[Any], start: int, end: int) -> tuple[int, int]:
    """The first and the last token of the characters from `start` to before `end`; (0, 0) where they are not wholly in
    the window. offsets: (tokens, 2) of one window."""
    inner = np.flatnonzero(offsets[:, 0] != NOT_THERE)
    if not len(inner) or end <= start:
        return 0, 0
    begins, ends = offsets[inner, 0], offsets[inner, 1]
    if begins[0] > start or ends[-1] < end:
        return 0, 0
    touching = np.flatnonzero((begins < end) & (ends > start))
    return (int(inner[touching[0]]), int(inner[touching[-1]])) if len(touching) else (0, 0)


def _context_problem(context: Any) -> Problem | None:
    """An empty context is fine: it holds no answer."""
    if not isinstance(context, str):
        return Problem("input", f"a {type(context).__name__} is not text; give the context as a string")
    return HALF if half_character(context) is not None else None


def _windows(
    tokenizer: TextTokenizer, items: list[Any], problems: dict[int, Problem], *, limit: int, overlap: int | None
) -> Windows:
    if not isinstance(tokenizer, FastTokenizer):
        raise ConfigError(
            "the model's tokenizer does not say which characters its tokens are of; answers and tags need a fast "
            "tokenizer, one with a tokenizer.json"
        )
    overlap = overlap_of(limit, overlap)
    good = [item for item in range(len(items)) if item not in problems]
    cuts: list[tuple[int, Cut]] = []
    for first in range(0, len(good), AT_ONCE):
        some = good[first : first + AT_ONCE]
        for item, found in zip(some, _located(tokenizer, [items[item] for item in some]), strict=True):
            cut = found if isinstance(found, Problem) else _cut(found, limit=limit, overlap=overlap)
            if isinstance(cut, Problem):
                problems[item] = cut
            else:
                cuts.append((item, cut))
    return _joined(cuts, len(items), problems, typed=tokenizer.typed)


def _located(tokenizer: FastTokenizer, items: list[Any]) -> list[Any]:
    """Encodings with their offsets; a problem for a text that the tokenizer fails on."""
    try:
        return tokenizer.located(items)
    except BaseException as error:  # panics too, and none says which text it was
        if not is_failure(error):
            raise
        if len(items) == 1:
            return [Problem("unread", f"the tokenizer cannot read the text: {first_line(error)}")]
    return [found for item in items for found in _located(tokenizer, [item])]


def _cut(found: Any, *, limit: int, overlap: int) -> Cut | Problem:
    """An encoding, and where its windows are. found: of the tokenizers library."""
    sequences = found.sequence_ids
    paired = found.n_sequences > 1
    inner = np.flatnonzero(np.array([one == int(paired) for one in sequences], np.bool_))
    around, count = len(sequences) - len(inner), len(inner)
    if not paired and not count:
        return Problem("nothing", "the text has no tokens; give at least one word")
    room = limit - around
    if room >= count:
        parts = [(0, count)]
    elif room > overlap:
        last = -(-(count - room) // (room - overlap))
        parts = [(n * (room - overlap), min(n * (room - overlap) + room, count)) for n in range(last + 1)]
    elif paired:
        return Problem("full", _no_room_beside(sum(one == 0 for one in sequences), room, limit, overlap))
    else:
        return Problem("room", no_room(limit, around))
    words = np.array([NOT_THERE if one is None else one for one in found.word_ids], np.int32)
    offsets = np.full((len(sequences), 2), NOT_THERE, np.int32)
    offsets[inner] = np.array(found.offsets, np.int32).reshape(-1, 2)[inner]
    outside = np.ones(len(sequences), np.bool_)
    outside[inner] = False
    words[outside] = NOT_THERE
    return Cut(np.array(found.ids, np.int32), np.array(found.type_ids, np.int32), offsets, words, inner, parts)


def _no_room_beside(question: int, room: int, limit: int, overlap: int) -> str:
    left = f"and leaves {room} for the context" if room > 0 else "and leaves none for the context"
    return (
        f"the question has {question} tokens {left} in windows of {limit}, which overlap by {overlap}; shorten the "
        "question, or give a larger max_length"
    )


def _joined(cuts: list[tuple[int, Cut]], items: int, problems: dict[int, Problem], *, typed: bool) -> Windows:
    """All windows end to end."""
    ids, types, offsets, words = list[Ints](), list[Ints](), list[Ints](), list[Ints]()
    rows, begins = list[int](), list[int]()
    for item, cut in cuts:
        for low, high in cut.parts:
            if len(cut.parts) == 1:
                places = np.arange(len(cut.ids))
            else:
                before, after = np.arange(cut.inner[0]), np.arange(cut.inner[-1] + 1, len(cut.ids))
                places = np.concatenate([before, cut.inner[low:high], after])
            for collected, own in ((ids, cut.ids), (types, cut.types), (offsets, cut.offsets), (words, cut.words)):
                collected.append(own[places])
            rows.append(item)
            begins.append(low)
    tokens = Tokens(
        ids=np.concatenate(ids) if ids else np.zeros(0, np.int32),
        types=(np.concatenate(types) if types else np.zeros(0, np.int32)) if typed else None,
        starts=starts_of([len(one) for one in ids]),
        truncated=np.zeros(len(ids), np.bool_),
    )
    return Windows(
        tokens=tokens,
        rows=np.array(rows, np.int64),
        items=items,
        offsets=np.concatenate(offsets) if offsets else np.zeros((0, 2), np.int32),
        words=np.concatenate(words) if words else np.zeros(0, np.int32),
        begins=np.array(begins, np.int64),
        problems=problems,
    )
