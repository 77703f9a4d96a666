"""What stands before every route: the key, the size and the time of a body."""

import asyncio
import hmac
from collections.abc import Iterator
from contextlib import contextmanager

from thresher.serving.errors import BadRequest, Overloaded, ServingError, TooLarge
from thresher.serving.http.asgi import Disconnected, Request

PATIENT = 16  # times the limit that is read, and forgotten, before a client is hung up on


class Unauthorized(ServingError):
    kind, status = "Unauthorized", 401


class TooSlow(ServingError):
    kind, status = "Timeout", 408


def check_key(request: Request, key: bytes | None) -> None:
    """`Authorization: Bearer KEY`, `x-api-key: KEY`, or as some clients do, `Authorization: KEY`; compared in constant
    time."""
    if key is None:
        return
    given = request.header("authorization") or request.header("x-api-key") or ""
    given = given[7:] if given[:7].lower() == "bearer " else given
    if not hmac.compare_digest(given.encode("latin-1"), key):  # the bytes as they came
        raise Unauthorized("the key is missing or wrong; send it as: Authorization: Bearer KEY")


class Room:
    """Bytes of all bodies that are here at once: many connections, each with a body that is allowed, are too much."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    @contextmanager
    def place(self) -> "Iterator[Place]":
        """For the body of one request, for as long as that is in work."""
        one = Place(self)
        try:
            yield one
        finally:
            one.leave()


class Place:
    """What one body takes of the room."""

    def __init__(self, room: Room) -> None:
        self._room, self._taken = room, 0

    def take(self, size: int) -> bool:
        """Whether there was room for so many bytes more."""
        if self._room.taken + size > self._room.most:
            return False
        self._room.taken += size
        self._taken += size
        return True

    def leave(self) -> None:
        self._room.taken -= self._taken
        self._taken = 0


async def read_body(request: Request, place: Place, *, limit: int, timeout: float) -> bytes:
    """All of it, refused as soon as it is known to be too large, and not waited for for ever."""
    said = request.header("content-length") or ""
    parts: list[bytes] = []
    size, refusal = 0, too_large(limit) if said.isdigit() and int(said) > limit else None
    try:
        if refusal is not None and request.held_back:
            raise refusal
        async with asyncio.timeout(timeout):
            while (part := await request.part()) is not None:
                size += len(part)
                if refusal is None and size > limit:
                    refusal = too_large(limit)
                elif refusal is None and not place.take(len(part)):
                    refusal = Overloaded("others send too much at once; try again", retry_after=1.0)
                if refusal is None:
                    parts.append(part)
                    continue
                parts.clear()  # and read on, because a client that still sends does not see the refusal
                place.leave()
                if size > PATIENT * limit:
                    break
    except TimeoutError as error:
        if refusal is None:
            raise TooSlow(f"the body did not come within {timeout:g} s; send it faster, or less of it") from error
    except Disconnected as error:
        raise BadRequest("the body is not complete") from error
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def too_large(limit: int) -> ServingError:
    return TooLarge(f"the body is larger than {limit} bytes; send fewer texts at a time, or raise --max-body-mb")


def wanted_timeout(request: Request) -> float | None:
    """How many seconds a client gives us, if it says so."""
    given = request.header("x-thresher-timeout")
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise BadRequest(f"x-thresher-timeout = {given[:20]!r} must be a number of seconds above 0")
    return seconds


def may_degrade(request: Request) -> bool:
    """What the header says, as the field of the same name in a body."""
    given = request.header("x-thresher-degrade")
    if given not in (None, "never", "allow"):
        raise BadRequest(f"x-thresher-degrade = {given[:20]!r} is not one of: never, allow")
    return given != "never"
