"""The whole forward as one CUDA graph per bucket of sizes: no launch and no waiting between copy in and copy out."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thresher.engine.cuda.batch import Inputs, Layout

GRAPHS = 8  # kept at a time; the one that was not used for longest goes first
Run = Callable[[Inputs, Layout], Tensor]  # all of the work, given back as one tensor


def bucket_of(*, tokens: int, sequences: int, longest: int, positions: int, typed: bool) -> Layout:
    """Room for a batch, in steps of at most a half, or a double for sequences and lengths, whose surplus costs less.

    The surplus programs of a launch leave at once, so it costs little time; a new bucket costs a capture.
    """
    return Layout(
        tokens=_stepped(tokens, least=32),
        sequences=1 << (sequences - 1).bit_length(),
        max_length=min(positions, max(32, 1 << (longest - 1).bit_length())),
        typed=typed,
    )


def _stepped(number: int, *, least: int) -> int:
    """The smallest 2^k or 1.5 x 2^k that holds `number`."""
    power = max(least, 1 << (number - 1).bit_length())
    lower = power * 3 // 4
    return lower if number <= lower and lower >= least else power


@dataclass(frozen=True)
class Recorded:
    """Fixed places for input and result, and what turns one into the other: (size,) int32 to int32."""

    inputs: Tensor
    result: Tensor
    graph: Any


class Graphs:
    """Captured lazily. Without `capture`, for the interpreter, the same work is run anew each time."""

    def __init__(self, run: Run, *, full: Callable[[Layout], Tensor], device: str, capture: bool) -> None:
        self.run, self.full, self.device, self.capture = run, full, device, capture
        self.recorded: OrderedDict[Layout, Recorded] = OrderedDict()
        # One pool for all: a replay's intermediates are dead at its end, and replays never overlap.
        self.pool = torch.cuda.graph_pool_handle() if capture else None

    def __call__(self, buffer: Tensor, layout: Layout) -> Tensor:
        """The result for a filled buffer on the host; valid until the next call."""
        if not self.capture:
            return self.run(layout.views(buffer.to(self.device)), layout)
        recorded = self.recorded.get(layout)
        if recorded is None:
            recorded = self._record(layout)
        self.recorded.move_to_end(layout)
        recorded.inputs.copy_(buffer, non_blocking=True)
        recorded.graph.replay()
        return recorded.result

    def _record(self, layout: Layout) -> Recorded:
        while len(self.recorded) >= GRAPHS:
            torch.cuda.synchronize()
            self.recorded.popitem(last=False)
        inputs = torch.empty(layout.size, dtype=torch.int32, device=self.device)
        inputs.copy_(self.full(layout))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Compiles, and measures tiles, at the full live count: neither can happen during a capture.
            self.run(layout.views(inputs), layout)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
            result = self.run(layout.views(inputs), layout)
        self.recorded[layout] = Recorded(inputs=inputs, result=result, graph=graph)
        return self.recorded[layout]
