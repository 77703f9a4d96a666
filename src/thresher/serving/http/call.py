"""What a route knows while it answers: its run, how it is asked, and what was computed for it so far."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thresher.engine.windows import Item
from thresher.serving.errors import Overloaded
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

    def choose(self, heads: Sequence[str], model: str | None = None) -> ServedRun:
        """The run for this request; the path's name counts more than the body's."""
        self.run = self.house.pick(self.route, heads, self.name or model)
        return self.run

    async def compute(self, items: Sequence[Item] | Sequence[list[int]], **changes: Any) -> Any:
        """Answers of all texts; `changes` are of the Ask."""
        assert self.run is not None  # `choose` comes first
        found = await self.run.compute(items, replace(self.ask, **changes), patience=self.house.patience)
        self.served.append(found)
        return found.answers

    async def aside(self, work: Callable[[], Any]) -> Any:
        """Do in another thread what does not go through the queue; few at a time."""
        if self.house.waiting_aside >= MOST_ASIDE:
            raise Overloaded(f"{MOST_ASIDE} requests wait to be explained; try again", retry_after=2.0)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self.house.waiting_aside += 1
        try:
            async with self.house.aside:
                return await await_in_passing(work)
        finally:
            self.house.waiting_aside -= 1
            self.aside_s += loop.time() - begin

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
