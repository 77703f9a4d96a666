"""Which layer dropped which token of a text, with the characters that each token is of."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from thresher.engine.answers import Answers
from thresher.engine.windows import Item
from thresher.serving.errors import BadRequest
from thresher.serving.run import ServedRun, check_texts, kept_ratios
from thresher.text import is_blank
from thresher.tokenizing.fast import FastTokenizer
from thresher.tokenizing.tokens import Tokens


@dataclass(frozen=True)
class Piece:
    """A token: `text[start:end]` of the first (part 0) or second text (part 1); part None for special tokens, whose
    `text` is their name. dropped_at: the layer, counted from 1, that dropped it; None where none did."""

    text: str
    part: int | None
    start: int
    end: int
    dropped_at: int | None


@dataclass(frozen=True)
class Explained:
    """One text with its pieces. layers: of the model; deciding: layers that a token can survive before only first
    tokens are read; answers: of this text alone."""

    pieces: list[Piece]
    layers: int
    deciding: int
    answers: Answers

    @property
    def kept_ratio(self) -> float:
        return float(kept_ratios(self.answers)[0])

    @property
    def kept_per_layer(self) -> list[int]:
        found: list[int] = self.answers.kept[0].tolist()
        return found

    def survival(self, piece: Piece) -> float:
        """The share of the layers before the last reading one that a token survives."""
        last = self.deciding if piece.dropped_at is None else min(piece.dropped_at - 1, self.deciding)
        return last / max(1, self.deciding)


def explain_items(run: ServedRun, items: Sequence[Item], *, dial: float) -> list[Explained]:
    """Computed once more, on the CPU; a text that cannot be read is a BadRequest."""
    tokens = run.engine.read(items)
    check_texts(tokens, truncate=True, longest=run.engine.max_length)
    engine = run.computing.explaining(dial)
    executor: Any = engine.executor
    with in_turn(run):
        answers = engine.finish(engine.begin(tokens))
        _, dropped = executor.trace(executor.pack(tokens))
    found = []
    for number, item in enumerate(items):
        pieces = _pieces(run, item, tokens, number, dropped[number])
        found.append(Explained(pieces, executor.shape.layers, executor.plan.alone, answers.take([number])))
    return found


def in_turn(run: ServedRun) -> AbstractContextManager[None]:
    """Between the batches of the queue, where these compute on the same processor."""
    turns = run.worker.turns
    return nullcontext() if turns is None else turns.mine(lambda: None)


def token_states(run: ServedRun, tokens: Tokens) -> list[list[list[float]]]:
    """The last known state of every token, (tokens, width) for each text: what an embedder takes the mean of."""
    executor: Any = run.computing.explaining(run.setting.dial).executor
    if run.engine.head.reads == "first":
        raise BadRequest("the model embeds by its first token, and does not compute the states of all; use /embed")
    with in_turn(run):
        states = executor.states(executor.pack(tokens)).numpy()
    bounds = tokens.starts.tolist()
    return [states[low:high].tolist() for low, high in zip(bounds[:-1], bounds[1:], strict=True)]


def relevant_spans(explained: Explained, *, threshold: float, most: int | None) -> list[dict[str, Any]]:
    """Stretches of the second text whose tokens survive, the longest surviving first: neighbours that are dropped in
    the same layer are one stretch, and its score is the share of layers that it survives."""
    inner = [piece for piece in explained.pieces if piece.part == 1 and piece.end > piece.start]
    found = []
    for score, group in groupby(inner, key=explained.survival):
        members = list(group)
        if score > threshold:
            found.append({"start": members[0].start, "end": members[-1].end, "score": round(score, 4)})
    found.sort(key=lambda span: (-span["score"], span["start"]))
    return found[:most]


def _pieces(run: ServedRun, item: Item, tokens: Tokens, number: int, dropped: Sequence[int | None]) -> list[Piece]:
    """With the characters of the text as the client sent it: an embedder's prompt stands before it."""
    engine = run.engine
    names = engine.tokenizer.convert_ids_to_tokens(tokens.between(number, number + 1).ids.tolist())
    tokenizing = engine.tokenizing
    if not isinstance(tokenizing.reader, FastTokenizer):
        return [Piece(name, None, 0, 0, at) for name, at in zip(names, dropped, strict=True)]
    (prompted,) = engine.prompted([item])
    before = len(prompted) - len(item) if isinstance(item, str) and not is_blank(item) else 0
    places = tokenizing.reader.characters(prompted, limit=tokenizing.limit, cuts=tokenizing.cuts)
    texts = item if isinstance(item, tuple) else (item,)
    pieces = []
    for name, (part, start, end), at in zip(names, places, dropped, strict=True):
        if part is None or end <= before:
            pieces.append(Piece(name, None, 0, 0, at))
        else:
            start, end = max(0, start - before), end - before
            pieces.append(Piece(texts[part][start:end], part, start, end, at))
    return pieces
