"""Why a request gets no answer. Each kind has a status and a name, which the routes write in their own schema."""

from thresher.errors import ThresherError


class ServingError(ThresherError):
    """Base of all. `kind` is what text-embeddings-inference calls it; `status` is HTTP's."""

    kind = "Backend"
    status = 424
    retry_after: int | None = None  # seconds after which it may work


class BadRequest(ServingError):
    """The request cannot be answered as it is, now or later."""

    kind, status = "Validation", 422


class BadText(BadRequest):
    """The tokenizer cannot read a text."""

    kind = "Tokenizer"


class EmptyRequest(BadRequest):
    """There is nothing to compute."""

    kind, status = "Empty", 400


class WrongRoute(BadRequest):
    """The run's head does not serve this route."""


class UnknownModel(BadRequest):
    """No run of that name is served."""

    status = 404


class TooLarge(BadRequest):
    """It would not be done in time even if nobody else asked for anything."""

    status = 413


class Overloaded(ServingError):
    """Others wait already; later there may be room."""

    kind, status = "Overloaded", 429

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = max(1, min(600, round(retry_after + 0.5)))


class Expired(ServingError):
    """Its deadline passed before it was computed."""

    kind, status = "Timeout", 504


class Unhealthy(ServingError):
    """The server ends, or the engine does not answer."""

    kind, status = "Unhealthy", 503
    retry_after = 5


class Failed(ServingError):
    """The engine could not compute it."""


class Abandoned(ServingError):
    """The client hung up."""

    kind, status = "Abandoned", 499
