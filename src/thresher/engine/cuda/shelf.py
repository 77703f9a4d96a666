"""What is worth keeping when there is room for few: graphs of the sizes that come again, however many sizes come."""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Demand(Generic[Key]):
    """How often each key was asked for lately. It forgets: every count is halved whenever there are `most` in all."""

    def __init__(self, *, most: int) -> None:
        self.most, self.counts, self._all = most, Counter[Key](), 0

    def note(self, key: Key) -> None:
        self.counts[key] += 1
        self._all += 1
        if self._all >= self.most:
            self.counts = Counter({each: count // 2 for each, count in self.counts.items() if count > 1})
            self._all = self.counts.total()


class Shelf(Generic[Key, Value]):
    """At most `room` values by their keys.

    While there is room, everything is let in. Then the one that was not used for longest gives way, but only to a key
    that is asked for more often: were it let in at once, a thousand sizes in turn would each be made anew every time.
    """

    def __init__(self, room: int, demand: Demand[Key]) -> None:
        self.room, self.demand, self.made = room, demand, 0
        self.kept: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self.kept)

    def __contains__(self, key: Key) -> bool:
        return key in self.kept

    def get(self, key: Key) -> Value | None:
        """What is kept for the key, which is used now; None where there is nothing."""
        if key in self.kept:
            self.kept.move_to_end(key)
        return self.kept.get(key)

    def admits(self, key: Key, *, often: int = 0) -> bool:
        """Whether it is worth making something for this key, which was asked for at least so `often`."""
        counts = self.demand.counts
        if counts[key] < often:
            return False
        if len(self.kept) < self.room:
            return True
        return counts[key] > counts[next(iter(self.kept))]

    def make_room(self) -> None:
        """Let go of what was not used for longest, until there is room for one more."""
        while len(self.kept) >= self.room:
            self.kept.popitem(last=False)

    def put(self, key: Key, value: Value) -> None:
        self.make_room()
        self.kept[key] = value
        self.made += 1

    def drop(self, key: Key) -> None:
        self.kept.pop(key, None)
