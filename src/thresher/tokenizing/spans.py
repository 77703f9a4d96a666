"""From start and end logits of a context's windows to answers in characters."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thresher.tokenizing.windows import Windows

N_BEST = 20
LONGEST = 30  # tokens of an answer
JOINER = "\u200d"  # between the parts of an emoji
SKIN = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
# What is of the character before it and no mark by its category: a non-joiner, a vowel of Thai and one of Lao, and the
# marks of narrow katakana.
JOINING = JOINER + SKIN + "\u200c\u0e33\u0eb3\uff9e\uff9f"
TAGS = "".join(map(chr, range(0xE0020, 0xE0080)))  # which name a region after a black flag
HANGUL = (
    *((0x1100, 0x115F, "L"), (0x1160, 0x11A7, "V"), (0x11A8, 0x11FF, "T")),
    *((0xA960, 0xA97C, "L"), (0xD7B0, 0xD7C6, "V"), (0xD7CB, 0xD7FB, "T")),
)
SYLLABLES = ("LL", "LV", "LO", "LC", "OV", "OT", "VV", "VT", "CT", "TT")  # neighbours that are of one syllable
FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))  # two are a flag


@dataclass(frozen=True)
class Candidate:
    """context[start:end], the sum of its start and end logits, and its probability among the n best and no answer."""

    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Found:
    """The best answers of one context, best first, and the score of none: the least of its windows', because an answer
    need be in one of them only."""

    candidates: tuple[Candidate, ...]
    null_score: float

    @property
    def margin(self) -> float:
        """By how much no answer is better than the best; infinite where there is nothing to choose from."""
        return self.null_score - self.candidates[0].score if self.candidates else math.inf

    def answered(self, threshold: float = 0.0) -> Candidate | None:
        """The best answer, or None: no answer is better by more than `threshold`, or there is no span."""
        return self.candidates[0] if self.candidates and self.margin <= threshold else None


def find_answers(
    windows: Windows, logits: NDArray[np.floating], *, n_best: int = N_BEST, longest: int = LONGEST
) -> list[Found | None]:
    """For each item the n best spans of at most `longest` tokens, found by looking at all of them; None for one with a
    problem. logits: (total, 2), a start and an end for each token; the first token of a window stands for no answer."""
    if logits.shape != (windows.tokens.total, 2):
        raise ValueError(f"logits of shape {logits.shape}, expected {(windows.tokens.total, 2)}: a start and an end")
    found: list[Found | None] = [None] * windows.items
    starts, exact = windows.tokens.starts, logits.astype(np.float64)
    for item, own in windows.by_item():
        spans: dict[tuple[int, int], float] = {}
        null = math.inf
        for window in own:
            low, high = int(starts[window]), int(starts[window + 1])
            null = min(null, float(exact[low].sum()))
            for start, end, score in best_spans(exact[low:high], windows.offsets[low:high], n_best, longest):
                spans[start, end] = max(score, spans.get((start, end), -math.inf))  # an overlap has it twice
        best = sorted(spans.items(), key=lambda span: -span[1])[:n_best]
        shares = _softmax([null, *(score for _, score in best)])
        chosen = zip(best, shares[1:], strict=True)
        found[item] = Found(tuple(Candidate(*span, score, share) for (span, score), share in chosen), null)
    return found


def best_spans(
    logits: NDArray[np.float64], offsets: NDArray[np.int32], n_best: int, longest: int
) -> list[tuple[int, int, float]]:
    """Start and end in characters, and score, of a window's best spans. logits, offsets: (tokens, 2)."""
    inner = np.flatnonzero(offsets[:, 0] != -1)
    if not len(inner):
        return []
    longest = min(longest, len(inner))  # whoever sets no bound must not pay for it
    after = np.full(len(inner) + longest - 1, -np.inf)
    after[: len(inner)] = logits[inner, 1]
    # (tokens, longest): the span that begins with a token and has so many more
    scores = logits[inner, 0][:, None] + np.lib.stride_tricks.sliding_window_view(after, longest)
    flat = scores.ravel()
    best = np.argpartition(-flat, n_best - 1)[:n_best] if len(flat) > n_best else np.arange(len(flat))
    best = best[np.lexsort((best, -flat[best]))]  # of equal scores the first and shortest
    first, more = np.divmod(best[np.isfinite(flat[best])], longest)
    begins, ends = offsets[inner[first], 0].tolist(), offsets[inner[first + more], 1].tolist()
    return list(zip(begins, ends, scores[first, more].tolist(), strict=True))


def whole_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends, which some tokenizers have tokens of, and widened where an end would
    cut what is one character to the eye: marks and their letter, which many tokenizers part or leave out, and the parts
    of an emoji or a flag. A span of white space alone stays as it is."""
    if inner := text[start:end].strip():
        start += text[start:end].index(inner)
        end = start + len(inner)
    while _parted(text, start):
        start -= 1
    while _parted(text, end):
        end += 1
    return start, end


def _parted(text: str, place: int) -> bool:
    """Whether a cut in front of text[place] parts one character."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if unicodedata.category(after)[0] == "M" or after in JOINING or before == JOINER or after in TAGS:
        return not before.isspace()
    if _hangul(before) + _hangul(after) in SYLLABLES:
        return True
    flags = len(text[:place]) - len(text[:place].rstrip(FLAG_LETTERS)) if after in FLAG_LETTERS else 0
    return flags % 2 == 1


def _hangul(character: str) -> str:
    """What part of a Korean syllable this is: a lead, a vowel, a tail, a syllable that is open, or one that has a tail;
    empty for anything else."""
    code = ord(character)
    if 0xAC00 <= code <= 0xD7A3:
        return "C" if (code - 0xAC00) % 28 else "O"
    return next((part for low, high, part in HANGUL if low <= code <= high), "")


def answer_text(found: Found | None, context: str) -> str:
    """The best answer, whatever its margin; empty where there is none."""
    if found is None or not found.candidates:
        return ""
    best = found.candidates[0]
    start, end = whole_span(context, best.start, best.end)
    return context[start:end]


def _softmax(scores: Sequence[float]) -> list[float]:
    powers = np.exp(np.array(scores) - max(scores))
    shares: list[float] = (powers / powers.sum()).tolist()
    return shares
