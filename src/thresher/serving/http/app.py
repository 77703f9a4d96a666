"""The server as an ASGI application: every route of the table for every run, health, metrics and pages."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from thresher.errors import is_failure
from thresher.serving.errors import Abandoned, BadRequest, Failed, Overloaded, ServingError
from thresher.serving.house import House
from thresher.serving.http.asgi import Receive, Reply, Request, Send, live
from thresher.serving.http.call import Call
from thresher.serving.http.gate import Room, check_key, may_degrade, read_body, wanted_timeout
from thresher.serving.http.metrics import Metrics
from thresher.serving.http.openapi import describe_routes
from thresher.serving.http.replies import TEI, error_reply, json_reply, refusal
from thresher.serving.http.routes.own import info
from thresher.serving.http.schemas import decode
from thresher.serving.http.table import ROUTES, ModelRoute
from thresher.serving.run import Ask
from thresher.text import shortened

log = logging.getLogger("thresher.access")
LOCKED = ("/info", "/v1/models", "/metrics")  # GET routes that need the key
OF_ONE_RUN = ("/info", "/health", "/readyz")  # GET routes that may stand behind /run/NAME
# Before others hear that there is no room: clients that come back at once, whatever Retry-After says, would take the
# time that the engine needs to make some.
REFUSED_S = 0.1
UNTAKEN_BYTES = 256 * 2**20  # of answers, beyond which nobody is answered
LARGE = 2**16  # bytes of an answer that a connection does not take at once
LAST_S = 5.0  # for an engine's last batch, of which nobody waits any more
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Options:
    """key: what clients must send, if anything; body_bytes: of a request at most; body_s: in which it must come;
    bodies_bytes: of all requests that are here at once."""

    key: bytes | None = None
    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 256 * 2**20
    body_s: float = 30.0


class App:
    """From HTTP to calls and back. Threads of the runs start with the application, and end with it.

    Where somebody counts: crowded, whether more connections are open than should be; untaken, bytes of answers that
    stand in the memory because their clients do not take them."""

    def __init__(self, house: House, options: Options | None = None) -> None:
        self.house, self.options, self.metrics = house, options or Options(), Metrics(house)
        self.crowded: Callable[[], bool] = lambda: False
        self.untaken: Callable[[], int] = lambda: 0
        self.room = Room(max(self.options.bodies_bytes, 2 * self.options.body_bytes))
        page, api = _page("index.html"), _page("api.html")
        self.posts = {route.path: route for route in ROUTES}
        self.gets: dict[str, Callable[[str | None], Reply]] = {
            "/": lambda run: page,
            "/docs": lambda run: api,
            "/openapi.json": lambda run: json_reply(describe_routes(ROUTES)),
            "/info": self._info,
            "/v1/models": lambda run: self._models(),
            "/livez": lambda run: json_reply({"alive": True}),
            "/health": self._ready,
            "/readyz": self._ready,
            "/metrics": lambda run: Reply(self.metrics.text(), "text/plain; version=0.0.4; charset=utf-8"),
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            reply = await self.answer(request)
            # A body that was not asked for may come nevertheless, or another request in its place.
            await reply.send(send, last=request.held_back)
        elif scope["type"] == "lifespan":
            await live(receive, send, begin=self.house.start, end=self._end)
        else:  # a web socket, which no route has
            await send({"type": "websocket.close"})

    async def answer(self, request: Request) -> Reply:
        path, run = request.path.rstrip("/") or "/", None
        if path.startswith("/run/"):  # /run/NAME before any route
            run, _, rest = path[5:].partition("/")
            path = "/" + rest
        route, get = self.posts.get(path), self.gets.get(path)
        if run is not None and path not in OF_ONE_RUN:
            get = None
        if request.method == "POST" and route is not None:
            return await self._post(route, request, run)
        if request.method in ("GET", "HEAD") and get is not None:
            return self._get(get, request, run, locked=path in LOCKED)
        if route is None and get is None:
            return error_reply(TEI, f"no route {shortened(request.path)}; see /docs", kind="NotFound", status=404)
        says = f"{request.method} is not for {shortened(request.path)}; see /docs"
        allow = ", ".join(["POST"] * (route is not None) + ["GET", "HEAD"] * (get is not None))
        return error_reply(TEI, says, kind="MethodNotAllowed", status=405, headers={"allow": allow})

    async def _end(self) -> None:
        await asyncio.to_thread(self.house.close, timeout=LAST_S)

    def _get(self, answer: Callable[[str | None], Reply], request: Request, run: str | None, *, locked: bool) -> Reply:
        try:
            if locked:
                check_key(request, self.options.key)
            return answer(run)
        except ServingError as error:
            return refusal(TEI, error)

    async def _post(self, route: ModelRoute, request: Request, run: str | None) -> Reply:
        began = time.perf_counter()
        asked = request.header("x-request-id") or ""
        name = asked if 0 < len(asked) <= 64 and asked.isprintable() else secrets.token_hex(16)
        call = Call(self.house, route.path, Ask(), name=run)
        error: ServingError | None = None
        try:
            reply = json_reply(await self._computed(route, request, call))
            if len(reply.body) > LARGE:  # others that were let in with this one may not have taken theirs
                self._check_room()
        except ServingError as found:
            error = found
            reply = refusal(route.style, found)
            if isinstance(found, Overloaded):
                await asyncio.sleep(REFUSED_S)
        except BaseException as found:  # a bug of ours is one request's, and not the server's end
            if not is_failure(found):
                raise
            log.exception("request failed", extra={"facts": {"route": route.path, "request": name}})
            error = Failed(f"the server failed at this request: {type(found).__name__}")
            reply = error_reply(route.style, str(error), kind="Backend", status=500)
        spent = time.perf_counter() - began
        reply.headers["x-request-id"] = name
        if error is None:
            reply.headers.update(call.headers(spent))
        self._note(route, call, reply.status, error, spent, name)
        return reply

    def _check_room(self) -> None:
        if self.untaken() > UNTAKEN_BYTES:
            raise Overloaded("clients do not take what was answered to them; try again", retry_after=1.0)

    async def _computed(self, route: ModelRoute, request: Request, call: Call) -> Any:
        check_key(request, self.options.key)
        if self.crowded():
            raise Overloaded("too many connections are open; try again, or raise --connections", retry_after=1.0)
        self._check_room()
        with self.room.place() as place:  # until it is answered: the texts are as large as the body
            body = await read_body(request, place, limit=self.options.body_bytes, timeout=self.options.body_s)
            try:
                given = decode(body, route.takes)
            except ValueError as error:
                raise BadRequest(str(error)) from error
            del body
            return await self._asked(given, route, request, call)

    async def _asked(self, given: Any, route: ModelRoute, request: Request, call: Call) -> Any:
        call.ask = Ask(
            timeout_s=wanted_timeout(request),
            degrade=given.degrade != "never" and may_degrade(request),
            hung_up=lambda: asyncio.ensure_future(request.gone()),
        )
        try:
            return await route.answer(given, call)
        finally:
            call.leave()

    def _note(
        self, route: ModelRoute, call: Call, status: int, error: ServingError | None, spent: float, name: str
    ) -> None:
        """Counters, and one line without any text."""
        run = call.run.name if call.run is not None else ""
        self.metrics.requests.labels(route.path, run, str(status)).inc()
        self.metrics.seconds.labels(route.path).observe(spent)
        kind = "" if error is None else "Abandoned" if isinstance(error, Abandoned) else error.kind
        if error is not None:
            self.metrics.errors.labels(kind, run).inc()
        if not log.isEnabledFor(logging.INFO):
            return
        facts: dict[str, Any] = {"route": route.path, "run": run, "status": status, "ms": round(1000 * spent, 1)}
        facts["request"] = name
        if error is not None:
            facts["error"] = kind
        elif call.served:
            facts["texts"] = sum(len(part.answers) for part in call.served)
            facts["tokens"] = sum(part.tokens for part in call.served)
        log.info("request", extra={"facts": facts})

    def _ready(self, name: str | None) -> Reply:
        problems = self.house.problems()
        if name is not None:
            problems = {shortened(name): problems.get(name, "no run of that name is served")}
        ready = any(problem is None for problem in problems.values())
        runs = {name: problem or "ready" for name, problem in problems.items()}
        if ready:
            return json_reply({"ready": True, "runs": runs})
        says = "; ".join(f"{name}: {problem}" for name, problem in runs.items())
        return error_reply(TEI, says, kind="Unhealthy", status=503)

    def _info(self, name: str | None) -> Reply:
        runs = list(self.house.runs.values())
        if name is not None:
            runs = [self.house.named(name)]
        return json_reply(info(runs))

    def _models(self) -> Reply:
        data = [
            {"id": name, "object": "model", "created": int(run.loaded_at), "owned_by": "thresher"}
            for name, run in self.house.runs.items()
        ]
        return json_reply({"object": "list", "data": data})


def _page(name: str) -> Reply:
    text = files("thresher.serving.http").joinpath("pages", name).read_bytes()
    return Reply(text, "text/html; charset=utf-8", headers=dict(PAGE_HEADERS))
