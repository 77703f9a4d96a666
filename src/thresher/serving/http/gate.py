"""What stands before every route: the key, the size and the time of a body."""

import asyncio
import hmac
from typing import Any

from starlette.requests import ClientDisconnect, Request

from thresher.serving.errors import BadRequest, ServingError, TooLarge

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
    given = request.headers.get("authorization") or request.headers.get("x-api-key", "")
    given = given[7:] if given[:7].lower() == "bearer " else given
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key):
        raise Unauthorized("the key is missing or wrong; send it as: Authorization: Bearer KEY")


async def read_body(request: Request, *, limit: int, timeout: float) -> bytes:
    """All of it, refused as soon as it is known to be too large, and not waited for for ever."""
    said = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size, too_big = 0, said.isdigit() and int(said) > limit
    try:
        async with asyncio.timeout(timeout):
            async for part in request.stream():
                size += len(part)
                too_big = too_big or size > limit
                if too_big and size > PATIENT * limit:
                    break
                if too_big:
                    parts.clear()  # read on, because a client that still sends does not see the refusal
                else:
                    parts.append(part)
    except TimeoutError as error:
        if not too_big:
            raise TooSlow(f"the body did not come within {timeout:g} s; send it faster, or less of it") from error
    except ClientDisconnect as error:
        raise BadRequest("the body is not complete") from error
    if too_big:
        raise TooLarge(f"the body is larger than {limit} bytes; send fewer texts at a time, or raise --max-body-mb")
    return b"".join(parts)


def wanted_timeout(headers: Any) -> float | None:
    """How many seconds a client gives us, if it says so."""
    given = headers.get("x-thresher-timeout")
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise BadRequest(f"x-thresher-timeout = {given[:20]!r} must be a number of seconds above 0")
    return seconds
