"""What an executor of a server puts off until nobody waits: graphs of new sizes, and better ones of those it has."""

from collections.abc import Sequence

import numpy as np

from thresher.engine.cuda.batch import HostBatch, Layout

ENOUGH_TOKENS = 65_536  # of real texts, before they say what is kept
REMEMBERED_TOKENS = 4_194_304  # then all that was counted is halved, so that texts of long ago are forgotten
FAR = 1 / 8  # of a batch's room: what is kept may be so far from what a graph was made for
MOST_KEPT = 7 / 8  # of the room, at most, as long as only made-up texts were seen


class Later:
    """`batches` has one of each size that was prepared or came, to capture with; above `room` the oldest goes."""

    def __init__(self, room: int, *, prunings: int) -> None:
        self.room, self.batches = room, dict[Layout, HostBatch]()
        self._counted = np.zeros(1 + prunings)

    def remember(self, batch: HostBatch) -> None:
        if batch.layout not in self.batches:
            self.batches[batch.layout] = batch
            if len(self.batches) > self.room:
                del self.batches[next(iter(self.batches))]

    def count(self, tokens: Sequence[int]) -> None:
        """A batch of real texts: tokens in all, and after each pruning."""
        self._counted += tokens
        if self._counted[0] > REMEMBERED_TOKENS:
            self._counted /= 2

    def better(self, layout: Layout, expected: Sequence[int] | None) -> list[int] | None:
        """What should be expected of a batch of this size; None where that is near to what is."""
        if expected is None or self._counted[0] < ENOUGH_TOKENS:
            return None
        found = [expected[0], *(layout.tokens * self._counted[1:] / self._counted[0]).astype(int).tolist()]
        far = max(abs(one - other) for one, other in zip(found, expected, strict=True))
        return found if far > FAR * layout.tokens else None


def guessed(layout: Layout, seen: Sequence[int]) -> list[int]:
    """What to expect of real texts after made-up ones were seen, of which a trained model may keep all: then the
    library would compute all rows, too, and pruning would save nothing."""
    return [seen[0], *(min(count, int(MOST_KEPT * layout.tokens)) for count in seen[1:])]
