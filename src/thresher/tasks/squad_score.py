"""Answers against the right ones, as the official SQuAD 2.0 evaluation does it: exact match, F1, the best threshold.

A predicted answer is right as far as it shares words with one of the right ones, without case, punctuation and
articles. A question without an answer is right where none is predicted. `tests/tasks/test_squad_score.py` holds numbers
that the official script printed.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from thresher.tasks.truth import Answers

NEVER = 1e6  # a threshold that no margin reaches: every question is answered
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Judged:
    """One question: how right its best answer is, whether it has one at all and whether one was predicted, and by how
    much no answer scored higher than that."""

    exact: int
    f1: float
    has_answer: bool
    answered: bool
    margin: float

    def at(self, threshold: float) -> tuple[float, float]:
        """(exact, F1) where an answer is withheld if no answer scores higher by more than `threshold`."""
        if self.margin > threshold:
            return float(not self.has_answer), float(not self.has_answer)
        return self.exact, self.f1


def judge(predicted: str, answers: Answers, margin: float) -> Judged:
    """The best answer's text, whatever its margin, against all that are right."""
    right = [text for text in answers.texts if normalised(text)] or [""]
    return Judged(
        exact=max(int(normalised(text) == normalised(predicted)) for text in right),
        f1=max(shared_words(text, predicted) for text in right),
        has_answer=bool(answers.texts),
        answered=bool(predicted),
        margin=margin,
    )


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and more than one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def shared_words(right: str, predicted: str) -> float:
    """F1 of the words of both; without words on one side, whether the other has none either."""
    ours, theirs = normalised(predicted).split(), normalised(right).split()
    if not ours or not theirs:
        return int(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    if shared == 0:
        return 0
    precision, recall = 1.0 * shared / len(ours), 1.0 * shared / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def squad_scores(rows: Sequence[Judged], threshold: float) -> dict[str, float]:
    """In percent, under the official names: all questions, those with an answer and those without."""
    found: dict[str, float] = {}
    parts = {"": rows, "HasAns_": [row for row in rows if row.has_answer]}
    parts["NoAns_"] = [row for row in rows if not row.has_answer]
    for prefix, some in parts.items():
        if some:
            exact, f1 = zip(*(row.at(threshold) for row in some), strict=True)
            found |= {f"{prefix}exact": 100.0 * sum(exact) / len(some), f"{prefix}f1": 100.0 * sum(f1) / len(some)}
            found[f"{prefix}total"] = len(some)
    return found


def best_f1(rows: Sequence[Judged]) -> tuple[float, float]:
    """The best F1, in percent, that a threshold gives on these rows, and that threshold.

    The official script names threshold 0 where it is best to answer nothing, which is right for probabilities; a margin
    may be below 0, and so the threshold is below all of them. Where all questions have an answer, none is withheld.
    """
    without = sum(not row.has_answer for row in rows)
    order = sorted(rows, key=lambda row: row.margin)
    now: float = without
    best, threshold = now, min(0.0, order[0].margin - 1.0)
    for row in order:
        now += row.f1 if row.has_answer else -1 if row.answered else 0
        if now > best:
            best, threshold = now, row.margin
    return 100.0 * best / len(rows), threshold if without else NEVER
