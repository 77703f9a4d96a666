"""How fast the engine is, measured while it works, and what that says of a wait."""

from collections.abc import Callable

LEAST_SECONDS = 1e-9  # for a token; so that nothing is divided by zero
LEAST_TOKENS = 256  # of a batch, if they are there: smaller ones waste a processor's products
WEIGHT = 0.1  # of the newest batch
WORST = 10  # times what it should take, at most, of a batch: one that hung must not be the end of all promises


def any_number(tokens: int) -> int:
    return tokens


class Pace:
    """Seconds for a token while a queue is emptied, at the run's own dial: time over tokens of the last batches.

    Small batches that nobody waits behind, which an idle server has, say little about that: they do not count, unless
    even they were faster.
    """

    def __init__(
        self,
        seconds_per_token: float,
        *,
        batch_seconds: float,
        most_tokens: int,
        fitting: Callable[[int], int] = any_number,
    ) -> None:
        """batch_seconds: how long a batch should take at most; most_tokens: what fits into one; fitting: of about so
        many tokens, how many leave no room unused."""
        self.batch_seconds, self.most_tokens, self._fitting = batch_seconds, most_tokens, fitting
        self._first = first = max(LEAST_SECONDS, seconds_per_token)
        # Of the mean batch, newer ones counting more; `_off`: how far its time is from what the pace says.
        self._tokens = float(min(most_tokens, max(LEAST_TOKENS, batch_seconds / first)))
        self._seconds, self._off = self._tokens * first, 0.0

    @property
    def seconds_per_token(self) -> float:
        return max(LEAST_SECONDS, self._seconds / self._tokens)

    @property
    def budget(self) -> int:
        """Tokens of a batch: as many as are computed in `batch_seconds`, so that newcomers do not wait for long."""
        wanted = int(self.batch_seconds / self.seconds_per_token)
        return self._fitting(min(self.most_tokens, max(LEAST_TOKENS, wanted)))

    def add(self, tokens: int, seconds: float, *, speed: float = 1.0, crowded: bool = False) -> None:
        """A batch was computed, at a dial that is so many times as fast as the run's own; crowded: others waited."""
        faster = seconds * speed < tokens * self.seconds_per_token
        if seconds > 0 and (crowded or faster or 2 * tokens >= self.budget):
            at_one = min(seconds * speed, WORST * max(tokens, self._tokens) * self.seconds_per_token)
            off = abs(at_one - tokens * self.seconds_per_token)
            self._off += WEIGHT * (off - self._off)
            self._tokens += WEIGHT * (tokens - self._tokens)
            self._seconds += WEIGHT * (at_one - self._seconds)

    def wait(self, tokens: int, *, speed: float = 1.0) -> float:
        """Seconds until so many tokens are computed, as the mean says."""
        return tokens * self.seconds_per_token / speed

    def hopeful_wait(self, tokens: int, *, speed: float = 1.0) -> float:
        """The same at the pace that the engine began with, if it has become slower: what an idle engine may reach."""
        return tokens * min(self._first, self.seconds_per_token) / speed

    def careful_wait(self, tokens: int, *, speed: float = 1.0) -> float:
        """The same where every batch is as much slower as batches usually are off: what a promise is made with."""
        return tokens * (self.seconds_per_token + self._off / self._tokens) / speed
