"""How right outputs for every token are: read row by row first, then counted over all rows, or over drawn ones.

A row's part in a metric is a line of numbers, so that quartiles and bootstraps need not read tokens again. Of
questions: exact, F1 and whether it has an answer; of tagged sentences: entities found rightly, found, and there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from thresher.errors import PredictionError
from thresher.tasks.squad_score import Judged, best_f1, judge, normalised, shared_words, squad_scores
from thresher.tasks.truth import Truth
from thresher.tokenizing.spans import Found, answer_text, find_answers
from thresher.tokenizing.tags import OUTSIDE, chunks, word_tags
from thresher.tokenizing.windows import Windows

if TYPE_CHECKING:
    from thresher.tasks.task import TaskSpec

Floats = NDArray[np.float64]
TOKEN_METRICS = {"span": ("f1", "exact"), "tags": ("f1",)}


def token_metrics(spec: "TaskSpec", outputs: Floats, truth: Truth) -> dict[str, float]:
    """Every metric as a fraction. outputs: (total tokens, outputs) of all windows end to end."""
    if not truth.labelled:
        rows, _ = row_parts(spec, outputs, truth)
        return {"agreement": float(rows[:, 1].mean() if spec.means == "span" else _ratio(rows[:, 0], rows[:, 1]))}
    if spec.means == "tags":
        rows, _ = row_parts(spec, outputs, truth)
        return entity_scores(rows.sum(axis=0))
    judged = judged_rows(outputs, truth)
    best, chosen = best_f1(judged)
    threshold = chosen if truth.null_threshold is None else truth.null_threshold
    found = squad_scores(judged, threshold)
    named = {name.lower(): value / 100 for name, value in found.items() if not name.endswith("total")}
    return {**named, "best_f1": best / 100, "null_threshold": threshold}


def row_parts(spec: "TaskSpec", outputs: Floats, truth: Truth) -> tuple[Floats, float]:
    """(rows, 3) each row's part in the metrics, and the threshold by which answers were withheld (0 for tags)."""
    if spec.means == "tags":
        return _tag_parts(spec, outputs, truth), 0.0
    if not truth.labelled:
        return _answer_agreement(outputs, truth), truth.null_threshold or 0.0
    judged = judged_rows(outputs, truth)
    threshold = best_f1(judged)[1] if truth.null_threshold is None else truth.null_threshold
    return np.array([[*row.at(threshold), row.has_answer] for row in judged], np.float64), threshold


def score_of_parts(spec: "TaskSpec", rows: Floats, counts: Floats, *, labelled: bool = True) -> Floats:
    """(draws,) the task's score on rows repeated `counts` times. rows: (rows, 3), counts: (draws, rows)."""
    if spec.means == "tags":
        right, found, there = (counts @ rows).T
        # F1 is 2 P R / (P + R), here without its zeros.
        above, below = (2 * right, found + there) if labelled else (right, found)
        share: Floats = np.divide(above, below, out=np.zeros_like(right), where=below > 0)
        return share
    columns = {"exact": 0, "f1": 1} if labelled else {"agreement": 1}
    wanted = [name for name in spec.metrics if name in columns] or ["agreement"]
    means = [counts @ rows[:, columns[name]] / counts.sum(axis=1) for name in wanted]
    return np.mean(means, axis=0)  # type: ignore[no-any-return]  # numpy's mean is typed as Any


def entity_scores(sums: Floats | Sequence[float]) -> dict[str, float]:
    """F1, precision and recall as seqeval has them, 0 where undefined. sums: entities right, found, there."""
    right, found, there = (float(one) for one in sums)
    precision = right / found if found else 0.0
    recall = right / there if there else 0.0
    both = precision + recall
    return {"f1": 2.0 * precision * recall / both if both else 0.0, "precision": precision, "recall": recall}


def judged_rows(outputs: Floats, truth: Truth) -> list[Judged]:
    """Every question's best answer against the right ones."""
    found = find_answers(_windows(outputs, truth), outputs)
    rows = zip(found, truth.texts, truth.values, strict=True)
    return [judge(answer_text(one, text), answers, _margin(one)) for one, text, answers in rows]


def _answer_agreement(outputs: Floats, truth: Truth) -> Floats:
    """(rows, 3): whether the dense model gives the same answer, how many words they share, and 1."""
    windows, threshold = _windows(outputs, truth), truth.null_threshold or 0.0
    parts = []
    both = zip(find_answers(windows, outputs), find_answers(windows, truth.values), truth.texts, strict=True)
    for *found, text in both:
        ours, theirs = (answer_text(one, text) if _margin(one) <= threshold else "" for one in found)
        parts.append([normalised(ours) == normalised(theirs), shared_words(theirs, ours), 1.0])
    return np.array(parts, np.float64)


def _margin(found: Found | None) -> float:
    return float("inf") if found is None else found.margin


def _tag_parts(spec: "TaskSpec", outputs: Floats, truth: Truth) -> Floats:
    """(rows, 3) entities right, found and there; without labels words with the dense model's tag, words, words."""
    windows = _windows(outputs, truth)
    if not truth.labelled:
        words = [int(count) for count in _word_counts(windows)]
        ours, theirs = (word_tags(windows, logits, words) for logits in (outputs, truth.values))
        same = [float((one == other).sum()) for one, other in zip(ours, theirs, strict=True)]
        return np.array([[right, count, count] for right, count in zip(same, words, strict=True)], np.float64)
    found = word_tags(windows, outputs, [len(tags) for tags in truth.values])
    parts = []
    for predicted, right in zip(found, truth.values, strict=True):
        # A word that no token stands for is tagged by nobody: it is outside.
        mine = set(chunks([OUTSIDE if tag < 0 else spec.labels[tag] for tag in predicted.tolist()]))
        there = set(chunks([spec.labels[tag] for tag in right]))
        parts.append([len(mine & there), len(mine), len(there)])
    return np.array(parts, np.float64)


def _word_counts(windows: Windows) -> NDArray[np.int64]:
    counts = np.zeros(windows.items, np.int64)
    np.maximum.at(counts, np.repeat(windows.rows, windows.tokens.lengths), windows.words.astype(np.int64) + 1)
    return counts


def _windows(outputs: Floats, truth: Truth) -> Windows:
    if truth.windows is None:
        raise ValueError("outputs of tokens are read by the windows of their rows; give spec.truth(rows, data=...)")
    if len(outputs) != truth.windows.tokens.total:
        raise ValueError(f"outputs for {len(outputs)} tokens, and the rows have {truth.windows.tokens.total}")
    if not np.isfinite(outputs).all():
        raise PredictionError(
            f"the model's predictions are NaN or infinite for some of {truth.rows} rows; check its weights, or train "
            "with a lower learning rate"
        )
    return truth.windows


def _ratio(above: Floats, below: Floats) -> float:
    return float(above.sum() / below.sum()) if below.sum() else 0.0
