"""A written file against the engine's reference: the same outputs and the same decisions, on real and hostile texts.

Pruning is discontinuous: where a score lies within EPSILON of its threshold, the last digits decide, and either answer
is right. Such a text's counts may differ, and its outputs are then not compared. Everything else must agree. In int8
the last digits also decide about whole bytes, so that both bounds are wider there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.graphs.build import DIAL, EMBEDDING, KEPT, LOGITS, SPAN, Form
from thresher.engine.graphs.int8 import Simulated
from thresher.engine.graphs.opened import Arrays, Opened, open_file, padded
from thresher.engine.packed import PackedExecutor
from thresher.engine.ragged import Ragged
from thresher.engine.weights import LayerScales, Weights
from thresher.errors import ModelError

TOLERANCE = 1e-5  # of outputs, times the largest of them where that is above 1
EPSILON = 1e-5  # of relative scores, whose mean is 1
INT8_TOLERANCE = INT8_EPSILON = 0.05
EXTRA = 3  # columns of padding beside the longest text
LONGEST = 1024  # tokens of a text of the check: attention to 8,192 would take gigabytes
SHORT = 128  # longer texts share no batch with many others: the check would take minutes

Text = tuple[list[int], list[int] | None]  # token ids and their types

REAL = (
    ("a gripping film that never lets go", "who made it?"),
    ("Two hours I will not get back.", "The plot is thin, the cast is not."),
    ("No", "Yes"),
    ("Der Zug hält heute nicht in Köln; please take the bus (line 12) instead!", "Which bus goes to Köln?"),
    ("the the the the the the the the the the the the the the the the the the the the", "the"),
    ("1 + 1 = 2, 3.14159 and 2.71828 ... ???", "Numbers, and not much else: 42."),
)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was compared: texts, and computed batches; the largest difference of outputs, and the largest output; how
    many texts had other counts because a score was at its threshold."""

    texts: int
    batches: int
    largest_difference: float
    largest_output: float
    at_a_threshold: int


class Watched(Simulated):
    """Remembers how near any score of a text came to its threshold, in units of relative scores."""

    def __init__(self, weights: Weights, plan: PruningPlan, scales: Sequence[LayerScales] = ()) -> None:
        super().__init__(weights, plan, scales)
        self.nearest: dict[int, float] = {}

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        context, scores = super().attend(index, hidden, runs, scored=scored)
        threshold = self.plan.thresholds[index]
        if scores is not None:
            sizes = runs.lengths.tolist()
            for text, part in zip(runs.sequences.tolist(), torch.split(scores, sizes), strict=True):
                limit = threshold * (len(part) if self.plan.scale == "paper" else 1)
                distance = float((part - limit).abs().min())
                self.nearest[text] = min(distance, self.nearest.get(text, distance))
        return context, scores


def texts_to_check(weights: Weights, tokenizer: Any, *, limit: int, pairs: bool) -> list[Text]:
    """Real texts as the tokenizer reads them, then random tokens: few, some, and as many as the model has positions, or
    LONGEST."""
    found: list[Text] = []
    for text, other in REAL:
        read = tokenizer(text, other if pairs else None, truncation=True, max_length=limit)
        found.append((list(read["input_ids"]), read.get("token_type_ids")))
    drawn, kinds = np.random.default_rng(0), 1 if weights.token_type is None else len(weights.token_type)
    for length in (1, 2, 3, 40, weights.positions):
        size = min(length, weights.positions, LONGEST)
        types = np.sort(drawn.integers(0, kinds, size))  # types come in runs
        found.append((drawn.integers(0, len(weights.word), size).tolist(), types.tolist()))
    return found


def check_file(
    file: Path,
    weights: Weights,
    plans: Mapping[float, PruningPlan],
    *,
    form: Form,
    texts: Sequence[Text],
    counting: Path,
    scales: Sequence[LayerScales] = (),
) -> Checked:
    """`check_opened` of a file; `counting`: the same file with the output of kept counts."""
    opened, counts = (open_file(each, threads=torch.get_num_threads()) for each in (file, counting))
    return check_opened(opened, weights, plans, form=form, texts=texts, counts=counts, scales=scales)


def check_opened(
    opened: Opened,
    weights: Weights,
    plans: Mapping[float, PruningPlan],
    *,
    form: Form,
    texts: Sequence[Text],
    counts: Opened,
    scales: Sequence[LayerScales] = (),
) -> Checked:
    """Compare, or say where they differ. plans: by dial; `counts`: the same graph with the output of kept counts;
    `scales`: those of a graph in int8."""
    tolerance, epsilon = bounds(int8=bool(scales))
    largest, top, batches, tied = 0.0, 0.0, 0, set()
    for dial, plan in plans.items():
        reference = Watched(weights, plan, scales)
        types = [kinds for _, kinds in texts] if form.types else None
        expected = PackedExecutor(reference).compute([ids for ids, _ in texts], types)
        kept = expected.kept.numpy()
        outputs = _by_text(expected.outputs.numpy(), [len(ids) for ids, _ in texts], plan)
        highest = max(float(np.abs(values).max()) for values in outputs)
        top, allowed = max(top, highest), tolerance * max(1.0, highest)
        for numbers, arrays in _batches(texts, form):
            arrays |= {DIAL: np.array(dial, np.float32)} if form.dial else {}
            found, passed = results_of(opened, arrays), counts([KEPT], arrays)[0]
            batches += 1
            for row, number in enumerate(numbers):
                if not np.array_equal(passed[row], kept[number]):
                    if reference.nearest.get(number, np.inf) > epsilon:
                        raise _differs(
                            texts[number], dial, f"kept counts are {passed[row].tolist()}, not {kept[number].tolist()}"
                        )
                    tied.add((dial, number))
                    continue
                difference = float(np.abs(found[row] - outputs[number]).max())
                if not difference <= allowed:  # NaN is no number to be below anything
                    rule = f"outputs differ by {difference:.2g}, and {allowed:.2g} is allowed"
                    raise _differs(texts[number], dial, rule)
                largest = max(largest, difference)
    if len(tied) == len(texts) * len(plans):
        raise ModelError("every text of the check has a score at a threshold, so nothing could be compared")
    return Checked(
        texts=len(texts),
        batches=batches,
        largest_difference=largest,
        largest_output=top,
        at_a_threshold=len(tied),
    )


def bounds(*, int8: bool) -> tuple[float, float]:
    """What outputs may differ by, times the largest where that is above 1, and how near a threshold excuses counts."""
    return (INT8_TOLERANCE, INT8_EPSILON) if int8 else (TOLERANCE, EPSILON)


def _by_text(outputs: NDArray[Any], lengths: Sequence[int], plan: PruningPlan) -> list[NDArray[Any]]:
    """(outputs,) for each text, or (tokens, outputs) where the head reads them all."""
    return np.split(outputs, np.cumsum(lengths)[:-1]) if plan.reads == "tokens" else list(outputs)


def _differs(text: Text, dial: float, what: str) -> ModelError:
    where = f"for a text of {len(text[0])} tokens" + ("" if dial == 1 else f" at dial {dial:g}")
    return ModelError(f"the exported graph is not the engine's model: {what}, {where}; nothing was written")


def _batches(texts: Sequence[Text], form: Form) -> Iterator[tuple[list[int], Arrays]]:
    """Numbers of texts and their padded arrays: together, and alone, padded on the right and on the left."""
    every = list(range(len(texts)))
    short = [number for number in every if len(texts[number][0]) <= SHORT]
    long = [number for number in every if number not in short]
    together = [] if form.one else [short, [*short[:2], *long]]
    for numbers in (*together, *([number] for number in (every if form.one else every[:2]))):
        for extra, left in ((0, False), (EXTRA, False), (EXTRA, True)):
            yield numbers, padded([texts[number] for number in numbers], types=form.types, extra=extra, left=left)


def results_of(opened: Opened, arrays: Arrays) -> list[NDArray[Any]]:
    """What each text of the batch gets: (outputs,), or (tokens, outputs) of a head that reads them all."""
    if SPAN[0] in opened.names:
        found = np.stack(opened(SPAN, arrays), axis=-1)
    else:
        found = opened([EMBEDDING if EMBEDDING in opened.names else LOGITS], arrays)[0]
    if found.ndim == 2:
        return list(found)
    return [row[mask == 1] for row, mask in zip(found, arrays["attention_mask"], strict=True)]
