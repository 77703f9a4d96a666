"""Texts in windows through an executor: the outputs of every token, some texts at a time."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from thresher.engine.forks import check_stream
from thresher.engine.of_tokens import Computed
from thresher.engine.stream import TextStream, covered
from thresher.engine.windows import characters_of, count_of
from thresher.tokenizing.called import TextTokenizer
from thresher.tokenizing.windows import Windows

MakeWindows = Callable[[TextTokenizer, Sequence[Any]], Windows]
SHARE = 4  # of an executor's window as many texts are enough, as each has several windows
CHARACTERS = 4_000_000  # of texts at once, after which no other is added: whole books are read one by one


class TokenStream:
    """Windows through the tokenizer and the executor of a stream."""

    def __init__(self, stream: TextStream, *, outputs: int) -> None:
        """`outputs` of a token."""
        self._stream, self._outputs = stream, outputs

    def __call__(
        self, items: Iterable[Any], make: MakeWindows, *, max_tokens: int, window: int | None
    ) -> Iterator[tuple[list[Any], Computed]]:
        """Items in their order, some at a time, with what was computed of them.

        The next of a list are cut into windows while these are computed; of a generator, `window` are read and answered
        before the next is asked for.
        """
        process, size = os.getpid(), window or self._stream.executor.window // SHARE
        ahead = (count_of(items) or 0) > size
        for piece, windows in _prepared(_pieces(items, size), lambda one: self.windows(one, make), ahead=ahead):
            yield piece, self.computed(windows, max_tokens=max_tokens)
            check_stream(process)

    def windows(self, items: Sequence[Any], make: MakeWindows) -> Windows:
        return make(self._stream.tokenizing.reader, items)

    def computed(self, windows: Windows, *, max_tokens: int) -> Computed:
        """The outputs of all windows; an item of which one cannot be computed has a problem."""
        tokens = covered(self._stream.executor.tables, windows.tokens)
        outputs, kept, found = self._stream.token_outputs(tokens, max_tokens, width=self._outputs)
        if tokens.problems:  # such windows have no tokens there, and keep their places here
            whole = np.zeros((windows.tokens.total, self._outputs), np.float32)
            whole[np.repeat(tokens.lengths > 0, windows.tokens.lengths)] = outputs
            outputs = whole
        problems = {item: problem.says for item, problem in windows.problems.items()}
        of_window = {number: problem.says for number, problem in tokens.problems.items()} | found
        for number, says in of_window.items():
            problems.setdefault(int(windows.rows[number]), says)
        return Computed(windows, outputs, kept, problems)


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    piece, total = [], 0
    for item in items:
        piece.append(item)
        total += characters_of(item)
        if len(piece) == size or total >= CHARACTERS:
            yield piece
            piece, total = [], 0
    if piece:
        yield piece


def _prepared(
    pieces: Iterator[list[Any]], prepare: Callable[[list[Any]], Windows], *, ahead: bool
) -> Iterator[tuple[list[Any], Windows]]:
    """Each piece with its windows; `ahead`, a thread makes the next ones meanwhile."""
    if not ahead:
        yield from ((piece, prepare(piece)) for piece in pieces)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizing") as pool:
        before = None
        for piece in pieces:
            following = (piece, pool.submit(prepare, piece))
            if before is not None:
                yield before[0], before[1].result()
            before = following
        if before is not None:
            yield before[0], before[1].result()
