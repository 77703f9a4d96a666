"""Rows that are pieces of other rows. SST-2 has sentences and thousands of their phrases to train on, and sentences to
test on: phrases held out by chance are shorter than what is tested, and the rest of their sentence was trained on."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from thresher.tasks.splits import hold_out_selection
from thresher.tasks.task import Example

SHARE = 0.15  # of the whole texts, for selection: about as many as SST-2 has validation rows
WORDS = 3  # shorter pieces occur everywhere


class Collection:
    """Texts that know their pieces."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._with: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)  # texts by any three words in a row
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        words = text.split()
        for start in range(len(words) - WORDS + 1):
            self._with[tuple(words[start : start + WORDS])].append(_spaced(words))

    def has_piece(self, text: str) -> bool:
        """Whether the words of `text`, three at least, follow each other in one of the texts."""
        words = text.split()
        return any(_spaced(words) in whole for whole in self._with.get(tuple(words[:WORDS]), ()))


def whole_rows(examples: Sequence[Example]) -> list[Example]:
    """The rows of at least three words that are no piece of another row."""
    plain = {" ".join(row.text.split()) for row in examples}
    found, wholes = Collection(), set()
    for text in sorted(plain, key=lambda text: (-len(text), text)):
        if text.count(" ") >= WORDS - 1 and not found.has_piece(text):
            found.add(text)
            wholes.add(text)
    return [row for row in examples if " ".join(row.text.split()) in wholes]


def hold_out_whole(
    train: Sequence[Example], tests: Iterable[Sequence[Example]]
) -> tuple[list[Example], list[Example], list[Example], int]:
    """Split into (train, selection, left out, leaked): whole rows for selection, pieces of them left out of training.

    `leaked` as in `hold_out_selection`. Without whole rows there is no selection.
    """
    rest, selection, leaked = hold_out_selection(train, tests, among=whole_rows(train), share=SHARE)
    pieces = Collection(row.text for row in selection)
    kept: list[Example] = []
    left_out: list[Example] = []
    for row in rest:
        (left_out if pieces.has_piece(row.text) else kept).append(row)
    return kept, selection, left_out, leaked


def _spaced(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "
