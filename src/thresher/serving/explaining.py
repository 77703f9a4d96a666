"""Which layer dropped which token of a text, with the characters that each token is of."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from thresher.engine.answers import Answers
from thresher.engine.engine import Engine
from thresher.engine.executor import Output
from thresher.engine.token_answers import TokenAnswers
from thresher.engine.windows import Item
from thresher.serving.errors import BadRequest
from thresher.serving.run import ServedRun, check_texts, kept_ratios
from thresher.text import is_blank
from thresher.tokenizing.fast import FastTokenizer
from thresher.tokenizing.tokens import Tokens

PORTION = 4096  # tokens at most that are computed in one turn
T = TypeVar("T")


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
    tokens are read; answers: of this text alone, computed in `seconds`; read: what a head that reads every token says
    of it."""

    pieces: list[Piece]
    layers: int
    deciding: int
    answers: Answers | TokenAnswers
    seconds: float
    read: Any = None

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


def explain_items(
    run: ServedRun, items: Sequence[Item], *, dial: float, wanted: Callable[[], None], timed: bool = False
) -> list[Explained]:
    """Computed on the CPU, beside the queue; a text that cannot be read is a BadRequest. `wanted` is called before each
    part, and raises where nobody waits any more. timed: computed once more, without looking at what is dropped."""
    if run.engine.head.reads == "tokens":
        return [_explain_window(run, item, dial, wanted) for item in items]
    tokens = run.engine.read(items)
    check_texts(tokens, truncate=True, longest=run.engine.max_length)
    engine = run.computing.explaining(dial)
    executor: Any = engine.executor
    found = []
    for first, end in portions(run, tokens):
        part = tokens.between(first, end)
        output, dropped = in_turn(run, wanted, _traced, executor, part)
        seconds = in_turn(run, wanted, _computed, engine, part)[1] / len(part) if timed else 0.0
        answers = answers_of(engine, part, output)
        for number in range(len(part)):
            pieces = _pieces(run, items[first + number], part, number, dropped[number])
            own = answers.take([number])
            found.append(Explained(pieces, executor.shape.layers, executor.plan.alone, own, seconds))
    return found


def answers_of(engine: Engine, tokens: Tokens, output: Output) -> Answers:
    """Of texts that were traced: as the engine gives them."""
    outputs, kept = output.outputs.numpy(), output.kept.numpy()
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=1)).tolist()
    problems = dict.fromkeys(bad, "the prediction is not a number")
    return Answers(engine.head, tuple(engine.labels), outputs, kept, tokens.lengths, tokens.truncated, problems)


def _explain_window(run: ServedRun, item: Item, dial: float, wanted: Callable[[], None]) -> Explained:
    """Of a head that reads every token: the first window of a text or a context, and the answers of all windows."""
    windows = run.engine.windows([item])
    check_texts(windows, truncate=True, longest=run.engine.max_length)
    engine = run.computing.explaining(dial)
    executor: Any = engine.executor
    first = windows.tokens.between(0, 1)
    _, (dropped,) = in_turn(run, wanted, _traced, executor, first)
    parts = [windows.tokens.between(low, high) for low, high in portions(run, windows.tokens)]
    found = [in_turn(run, wanted, _computed, engine, part) for part in parts]
    answers, seconds = TokenAnswers.joined([each for each, _ in found]), sum(spent for _, spent in found)
    part = 1 if isinstance(item, tuple) else 0
    text = item[1] if isinstance(item, tuple) else item
    names = engine.tokenizer.convert_ids_to_tokens(first.ids.tolist())
    pieces = []
    for name, (start, end), at in zip(names, windows.offsets[: first.total].tolist(), dropped, strict=True):
        inside = start >= 0
        pieces.append(Piece(text[start:end], part, start, end, at) if inside else Piece(name, None, 0, 0, at))
    (read,) = engine.answers_of(windows, answers, [item])
    return Explained(pieces, executor.shape.layers, executor.plan.layers, answers, seconds, read)


def _traced(executor: Any, tokens: Tokens) -> Any:
    return executor.trace(executor.pack(tokens))


def _computed(engine: Engine, tokens: Tokens) -> tuple[Any, float]:
    """The answers, and the seconds that the engine takes when it is not looked at."""
    began = time.perf_counter()
    group = engine.begin(tokens)
    answers = engine.finish_tokens(group) if engine.head.reads == "tokens" else engine.finish(group)
    return answers, time.perf_counter() - began


def portions(run: ServedRun, tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Texts from one number to before another that are computed in one turn: a batch's worth, so that batches of the
    queue come between."""
    most, first = min(run.queue.pace.budget, PORTION), 0
    while first < len(tokens):
        end = int(np.searchsorted(tokens.starts, tokens.starts[first] + most, side="right")) - 1
        end = max(first + 1, end)
        yield first, end
        first = end


def in_turn(run: ServedRun, wanted: Callable[[], None], work: Callable[..., T], *given: Any) -> T:
    """`work` of what is given, between the batches of the queue, where these are computed on the same processor."""
    wanted()
    turns = run.worker.turns
    return work(*given) if turns is None else turns.take(partial(work, *given))[0]


def token_states(run: ServedRun, tokens: Tokens, wanted: Callable[[], None]) -> list[list[list[float]]]:
    """The last known state of every token, (tokens, width) for each text: what an embedder takes the mean of."""
    executor: Any = run.computing.explaining(run.setting.dial).executor
    if run.engine.head.reads == "first":
        raise BadRequest("the model embeds by its first token, and does not compute the states of all; use /embed")
    found = []
    for first, end in portions(run, tokens):
        part = tokens.between(first, end)
        states = in_turn(run, wanted, _states, executor, part)
        bounds = part.starts.tolist()
        found += [states[low:high].tolist() for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
    return found


def _states(executor: Any, tokens: Tokens) -> Any:
    return executor.states(executor.pack(tokens)).numpy()


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
