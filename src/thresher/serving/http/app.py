"""The server as an ASGI application: every route of the table for every run, health, metrics and pages."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from thresher.serving.errors import Abandoned, BadRequest, Failed, ServingError
from thresher.serving.house import House
from thresher.serving.http.call import Call
from thresher.serving.http.gate import check_key, read_body, wanted_timeout
from thresher.serving.http.metrics import Metrics
from thresher.serving.http.openapi import describe_routes
from thresher.serving.http.replies import TEI, error_reply, json_reply, refusal
from thresher.serving.http.routes.own import info
from thresher.serving.http.schemas import decode
from thresher.serving.http.table import ROUTES, ModelRoute
from thresher.serving.run import Ask

log = logging.getLogger("thresher.access")
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Options:
    """key: what clients must send, if anything; body_bytes: of a request at most; body_s: in which it must come."""

    key: bytes | None = None
    body_bytes: int = 8 * 2**20
    body_s: float = 30.0
    drain_s: float = 30.0


def make_app(house: House, options: Options | None = None) -> Starlette:
    """Threads of the runs start with the application, and end with it."""
    options = options or Options()
    door = Door(house, options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        house.start()
        yield
        await asyncio.to_thread(house.close, timeout=options.drain_s)

    return Starlette(routes=door.routes(), lifespan=lifespan, exception_handlers={404: _not_found, 405: _wrong_method})


class Door:
    """From HTTP to calls and back."""

    def __init__(self, house: House, options: Options) -> None:
        self.house, self.options, self.metrics = house, options, Metrics(house)

    def routes(self) -> list[Route]:
        found = []
        for route in ROUTES:
            endpoint = self._answers(route)
            found.append(Route(route.path, endpoint, methods=["POST"]))
            found.append(Route(f"/run/{{run}}{route.path}", endpoint, methods=["POST"]))
        page, api = (_page(name) for name in ("index.html", "api.html"))
        plain: dict[str, Callable[[Request], Response]] = {
            "/": lambda request: page,
            "/docs": lambda request: api,
            "/openapi.json": lambda request: json_reply(describe_routes(ROUTES)),
            "/info": lambda request: json_reply(info(self.house)),
            "/v1/models": self._models,
            "/livez": lambda request: json_reply({"alive": True}),
            "/health": self._ready,
            "/readyz": self._ready,
            "/run/{run}/readyz": self._ready,
            "/metrics": lambda request: Response(self.metrics.text(), media_type="text/plain; version=0.0.4"),
        }
        locked = ("/info", "/v1/models", "/metrics")
        for path, answer in plain.items():
            found.append(Route(path, self._plain(answer, locked=path in locked), methods=["GET"]))
        return found

    def _plain(self, answer: Callable[[Request], Response], *, locked: bool) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                if locked:
                    check_key(request, self.options.key)
                return answer(request)
            except ServingError as error:
                return refusal(TEI, error)

        return endpoint

    def _answers(self, route: ModelRoute) -> Any:
        async def endpoint(request: Request) -> Response:
            began = time.perf_counter()
            asked = request.headers.get("x-request-id", "")
            name = asked if 0 < len(asked) <= 64 and asked.isprintable() else uuid.uuid4().hex
            call = Call(self.house, route.path, Ask(), name=request.path_params.get("run"))
            error: ServingError | None = None
            try:
                reply = json_reply(await self._answer(route, request, call))
            except ServingError as found:
                error = found
                reply = refusal(route.style, found)
            except Exception as found:  # a bug of ours is one request's, and not the server's end
                log.exception("request failed", extra={"facts": {"route": route.path, "request": name}})
                error = Failed(f"the server failed at this request: {type(found).__name__}")
                reply = error_reply(route.style, str(error), kind="Backend", status=500)
            spent = time.perf_counter() - began
            reply.headers["x-request-id"] = name
            if error is None:
                reply.headers.update(call.headers(spent))
            self._note(route, call, reply.status_code, error, spent, name)
            return reply

        return endpoint

    async def _answer(self, route: ModelRoute, request: Request, call: Call) -> Any:
        check_key(request, self.options.key)
        body = await read_body(request, limit=self.options.body_bytes, timeout=self.options.body_s)
        try:
            given = decode(body, route.takes)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        degrade = given.degrade != "never" and request.headers.get("x-thresher-degrade") != "never"
        call.ask = Ask(
            timeout_s=wanted_timeout(request.headers),
            degrade=degrade,
            hung_up=lambda: asyncio.ensure_future(_hung_up(request)),
        )
        return await route.answer(given, call)

    def _note(
        self, route: ModelRoute, call: Call, status: int, error: ServingError | None, spent: float, name: str
    ) -> None:
        """Counters, and one line without any text."""
        run = call.run.name if call.run is not None else ""
        self.metrics.requests.labels(route.path, run, str(status)).inc()
        self.metrics.seconds.labels(route.path).observe(spent)
        facts: dict[str, Any] = {"route": route.path, "run": run, "status": status, "ms": round(1000 * spent, 1)}
        facts["request"] = name
        if error is not None:
            kind = "Abandoned" if isinstance(error, Abandoned) else error.kind
            self.metrics.errors.labels(kind, run).inc()
            facts["error"] = kind
        elif call.served:
            facts["texts"] = sum(len(part.answers) for part in call.served)
            facts["tokens"] = sum(part.tokens for part in call.served)
        log.info("request", extra={"facts": facts})

    def _ready(self, request: Request) -> Response:
        problems = self.house.problems()
        name = request.path_params.get("run")
        if name is not None:
            problems = {name: problems.get(name, "no run of that name is served")}
        ready = any(problem is None for problem in problems.values())
        runs = {name: problem or "ready" for name, problem in problems.items()}
        if ready:
            return json_reply({"ready": True, "runs": runs})
        says = "; ".join(f"{name}: {problem}" for name, problem in runs.items())
        return error_reply(TEI, says, kind="Unhealthy", status=503)

    def _models(self, request: Request) -> Response:
        data = [
            {"id": name, "object": "model", "created": int(run.loaded_at), "owned_by": "thresher"}
            for name, run in self.house.runs.items()
        ]
        return json_reply({"object": "list", "data": data})


async def _hung_up(request: Request) -> None:
    """Ends when the client has gone; it has sent its whole body before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _not_found(request: Request, error: Exception) -> Response:
    return error_reply(TEI, f"no route {request.url.path}; see /docs", kind="NotFound", status=404)


async def _wrong_method(request: Request, error: Exception) -> Response:
    says = f"{request.method} is not for {request.url.path}; see /docs"
    return error_reply(TEI, says, kind="MethodNotAllowed", status=405, headers=getattr(error, "headers", None))


def _page(name: str) -> HTMLResponse:
    text = files("thresher.serving.http").joinpath("pages", name).read_text("utf-8")
    return HTMLResponse(text, headers=PAGE_HEADERS)
