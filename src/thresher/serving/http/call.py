"""What a route knows while it answers: its run, how it is asked, and what was computed for it so far."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from thresher.engine.windows import Item
from thresher.serving.errors import Abandoned, Expired, Overloaded
from thresher.serving.house import House
from thresher.serving.run import Ask, Served, ServedRun
from thresher.serving.threads import await_in_passing

MOST_ASIDE = 8  # requests that wait to be explained


@dataclass(eq=False)
class Call:
    """One request. `served` grows with what is computed for it, and becomes its headers."""

    house: House
    route: str
    ask: Ask
    name: str | None = None  # of a run, from the path
    run: ServedRun | None = None
    served: list[Served] = field(default_factory=list)
    aside_s: float = 0.0
    arrived: float = field(default_factory=time.monotonic)

    def choose(self, heads: Sequence[str], model: str | None = None) -> ServedRun:
        """The run for this request; the path's name counts more than the body's. It stays until `leave`."""
        self.leave()
        if self.name is not None:  # an address is of one run; a model's name is what clients must send anyway
            model = self.house.named(self.name).name
        self.run = self.house.pick(self.route, heads, model)
        self.run.calls.add(self)
        return self.run

    def leave(self) -> None:
        """Nothing more is asked of the run."""
        if self.run is not None:
            self.run.calls.discard(self)

    async def compute(self, items: Sequence[Item] | Sequence[list[int]], **changes: Any) -> Any:
        """Answers of all texts; `changes` are of the Ask."""
        assert self.run is not None  # `choose` comes first
        found = await self.run.compute(items, replace(self.ask, **changes), patience=self.house.patience)
        self.served.append(found)
        return found.answers

    @property
    def deadline(self) -> float:
        """Of the whole request, on the queue's clock."""
        assert self.run is not None  # as above
        longest = self.run.setting.limits.timeout_s
        return self.arrived + min(self.ask.timeout_s or longest, longest)

    async def aside(self, work: Callable[[Callable[[], None]], Any], *, tokens: int) -> Any:
        """Do in another thread what does not go through the queue: so many tokens, of few requests at a time.

        `work` is given what it calls before each part, which raises where the client hung up, or it is too late.
        """
        run, deadline = self.run, self.deadline
        assert run is not None  # as above
        run.check_health(self.house.patience)
        run.queue.check(tokens, deadline, degrade=False)
        if self.house.waiting_aside >= MOST_ASIDE:
            raise Overloaded(f"{MOST_ASIDE} requests wait to be explained; try again", retry_after=2.0)
        gone = None if self.ask.hung_up is None else self.ask.hung_up()
        late = Expired(f"not computed within {deadline - self.arrived:.1f} s; try again, or send less")

        def wanted() -> None:
            if gone is not None and gone.done():
                raise Abandoned("hung up")
            if time.monotonic() > deadline:
                raise late

        began = time.monotonic()
        self.house.waiting_aside += 1
        try:
            async with asyncio.timeout(deadline - began), self.house.aside:
                wanted()
                return await await_in_passing(partial(work, wanted))
        except TimeoutError as error:
            raise late from error
        finally:
            self.house.waiting_aside -= 1
            self.aside_s += time.monotonic() - began
            if gone is not None:
                gone.cancel()

    def headers(self, total_s: float) -> dict[str, str]:
        """As text-embeddings-inference writes them, in milliseconds, and what only pruning has to say."""
        found = {"x-total-time": _ms(total_s)}
        if not self.served:
            return found
        parts = self.served
        engine = sum(part.engine_s for part in parts) + self.aside_s
        texts = sum(len(part.answers) for part in parts)
        kept = sum(part.kept_ratio * len(part.answers) for part in parts) / texts
        return found | {
            "x-compute-type": "cpu" if self.run is None else self.run.engine.executor.device,
            "x-compute-time": _ms(sum(part.tokenizing_s + part.engine_s for part in parts) + self.aside_s),
            "x-compute-characters": str(sum(part.characters for part in parts)),
            "x-compute-tokens": str(sum(part.tokens for part in parts)),
            "x-tokenization-time": _ms(sum(part.tokenizing_s for part in parts)),
            "x-queue-time": _ms(sum(part.queue_s for part in parts)),
            "x-inference-time": _ms(engine),
            "x-thresher-kept-ratio": f"{kept:.4f}",
            "x-thresher-dial": f"{max(part.dial for part in parts):g}",
        }


def _ms(seconds: float) -> str:
    return str(round(1000 * seconds))
