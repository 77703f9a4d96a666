"""Errors as each family of clients reads them, always one line of JSON."""

from typing import Any

import msgspec

from thresher.serving.errors import ServingError
from thresher.serving.http.asgi import Reply
from thresher.text import shortened

MOST = 2000  # characters of a message: some say what a client sent
TEI, OPENAI, COHERE = "tei", "openai", "cohere"
# OpenAI's names; clients choose their exceptions by the status.
OPENAI_TYPES = {429: "rate_limit_exceeded", 401: "authentication_error", 404: "not_found_error"}


def json_reply(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    return Reply(msgspec.json.encode(value), status=status, headers=headers or {})


def error_reply(
    style: str, message: str, *, kind: str, status: int, retry_after: int | None = None, headers: Any = None
) -> Reply:
    """In the style of a route: text-embeddings-inference's, OpenAI's (and vLLM's), or Cohere's."""
    message = shortened(" ".join(message.split()), MOST)
    if style != TEI and status == 422:
        status = 400  # what the others say of a bad request
    if style == OPENAI:
        name = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 and status != 424 else "server_error")
        body: dict[str, Any] = {"error": {"message": message, "type": name, "param": None, "code": kind.lower()}}
    elif style == COHERE:
        body = {"message": message, "error_type": kind}
    else:
        body = {"error": message, "error_type": kind}
    more = {**(headers or {})}
    if retry_after is not None:
        more["retry-after"] = str(retry_after)
    return json_reply(body, status=status, headers=more)


def refusal(style: str, error: ServingError, headers: dict[str, str] | None = None) -> Reply:
    about = {"kind": error.kind, "status": error.status, "retry_after": error.retry_after}
    return error_reply(style, str(error), headers=headers, **about)  # type: ignore[arg-type]  # each as named
