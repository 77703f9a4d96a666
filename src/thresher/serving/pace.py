"""How fast the engine is, measured while it works, and what that says of a wait."""

LEAST_SECONDS = 1e-9  # for a token; so that nothing is divided by zero
LEAST_TOKENS = 256  # of a batch, if they are there: smaller ones waste a processor's products
WEIGHT = 0.1  # of the newest batch


class Pace:
    """Seconds for a token in full batches, at the run's own dial.

    Small batches, which an idle server has, say little about how fast a queue is emptied: they do not count.
    """

    def __init__(self, seconds_per_token: float, *, batch_seconds: float, most_tokens: int) -> None:
        """batch_seconds: how long a batch should take at most; most_tokens: what fits into one."""
        self.seconds_per_token = max(LEAST_SECONDS, seconds_per_token)
        self.batch_seconds, self.most_tokens = batch_seconds, most_tokens

    @property
    def budget(self) -> int:
        """Tokens of a batch: as many as are computed in `batch_seconds`, so that newcomers do not wait for long."""
        wanted = int(self.batch_seconds / self.seconds_per_token)
        return min(self.most_tokens, max(LEAST_TOKENS, wanted))

    def add(self, tokens: int, seconds: float, *, speed: float = 1.0) -> None:
        """A batch was computed, at a dial that is so many times as fast as the run's own."""
        if 2 * tokens >= self.budget and seconds > 0:
            found = max(LEAST_SECONDS, seconds * speed / tokens)
            self.seconds_per_token += WEIGHT * (found - self.seconds_per_token)

    def wait(self, tokens: int, *, speed: float = 1.0) -> float:
        """Seconds until so many tokens are computed."""
        return tokens * self.seconds_per_token / speed
