"""The whole forward as one CUDA graph per bucket of sizes: no launch and no waiting between copy in and copy out."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.engine.cuda.batch import Inputs, Layout
from thresher.engine.cuda.forward import Forward
from thresher.engine.cuda.live import Numbers, OnDevice
from thresher.engine.cuda.shelf import Demand, Shelf
from thresher.hardware import own_workspaces

FINE_FROM = 2048  # tokens
_capturing = threading.Lock()  # while one engine captures, no other may wait for the device
GRAPHS = 32  # kept at a time, in each lane
REMEMBERED = 64 * GRAPHS  # batches that say which buckets are worth a graph


class OnePass:
    """The forward pass without the host. All that it gives is in one int32 tensor, so that one copy brings it back:
    outputs, and where sequences start, at first and after each pruning."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, inputs: Inputs, layout: Layout, expected: Sequence[int] | None) -> Tensor:
        """`expected`: tokens before and after each pruning, or None."""
        plan = self.forward.plan
        counts = OnDevice(inputs, layout, expected or [layout.tokens] * (1 + len(plan.pruning_layers)))
        outputs = self.forward(inputs, counts)
        return torch.cat([outputs.view(torch.int32).flatten(), inputs.cu_seqlens, *counts.starts])

    def apart(self, result: Tensor, layout: Layout) -> tuple[Numbers, Numbers]:
        """Outputs of all sequences, or all tokens where the head reads these, (rows, outputs), and where sequences
        start, (1 + prunings, sequences + 1)."""
        plan = self.forward.plan
        passes = 1 + len(plan.pruning_layers)
        numbers: Numbers = result.numpy()
        split = len(numbers) - passes * (layout.sequences + 1)
        rows = layout.tokens if plan.reads == "tokens" else layout.sequences
        return numbers[:split].view(np.float32).reshape(rows, -1), numbers[split:].reshape(passes, -1)

    def tokens_seen(self, result: Tensor, layout: Layout) -> list[int]:
        """In all, and after each pruning."""
        seen: list[int] = self.apart(result, layout)[1][:, -1].tolist()
        return seen


def bucket_of(*, tokens: int, sequences: int, longest: int, positions: int, typed: bool) -> Layout:
    """Room for a batch: a new bucket costs a capture, room that is not used next to nothing where our kernels compute,
    but as much as any other where the library does. So the steps are fine for many tokens, and coarse for all else.
    """
    return Layout(
        tokens=_stepped(tokens, least=32, steps=16 if tokens > FINE_FROM else 2),
        sequences=4 ** -(-(sequences - 1).bit_length() // 2),
        max_length=min(positions, max(32, 1 << (longest - 1).bit_length())),
        typed=typed,
    )


def _stepped(number: int, *, least: int, steps: int) -> int:
    """The smallest number that holds `number`, of so many in every doubling."""
    step = max(1, (1 << (number - 1).bit_length()) // 2 // steps)
    return max(least, -(-number // step) * step)


@dataclass(frozen=True)
class Captured:
    """Fixed places for input, on the device, and result, on the host, and what turns one into the other."""

    inputs: Tensor
    result: Tensor
    graph: Any


@dataclass(frozen=True)
class Ticket:
    """A batch that a lane has begun: its result, on the host once `ready` (None: it is there)."""

    result: Tensor
    ready: Any = None

    def wait(self) -> None:
        if self.ready is not None:
            self.ready.synchronize()


class Lane:
    """Room for one batch in flight, with graphs, memory and a stream of its own. Graphs are captured when they are
    first needed, or once they were asked for `often`; a bucket that its shelf does not admit runs without one.

    Without `capture`, for the interpreter, a graph is nothing, and the same work is run anew each time.
    """

    def __init__(
        self,
        run: OnePass,
        demand: Demand[Layout],
        *,
        device: str,
        capture: bool,
        room: int | None = None,
        often: int = 0,
    ) -> None:
        self.run, self.demand, self.device, self.capture, self.often = run, demand, device, capture, often
        self.captured: Shelf[Layout, Captured] = Shelf(room or GRAPHS, demand)
        self.stalls = 0  # launches that waited for a capture, or perhaps for a compiler
        # One pool for all: a replay's intermediates are dead at its end, and replays of a lane never overlap. One
        # stream, too: memory that was freed on one is not given out on another.
        self.pool = torch.cuda.graph_pool_handle() if capture else None
        self.stream = torch.cuda.Stream() if capture else None  # type: ignore[no-untyped-call]

    def launch(
        self, buffer: Tensor, layout: Layout, expected: dict[Layout, list[int]], *, capture_now: bool = False
    ) -> Ticket:
        """Begin with a filled buffer on the host; the result is valid until the lane's next launch. `expected`: tokens
        before and after each pruning, by bucket, as the first batch showed; what is new is added. capture_now: whether
        the bucket is worth a graph or not."""
        self.demand.note(layout)
        captured = self.captured.get(layout)
        if captured is None and (capture_now or self.captured.admits(layout, often=self.often)):
            self.stalls += 1
            with _capturing:
                captured = self._captured(layout, buffer, expected)
        elif captured is None and self.demand.counts[layout] <= 1:
            self.stalls += 1  # kernels for this bucket may be new
        if not self.capture:
            return Ticket(self.run(layout.views(buffer.to(self.device)), layout, expected.get(layout)))
        if captured is None:
            return self._uncaptured(buffer, layout, expected)
        with torch.cuda.stream(self.stream):
            captured.inputs.copy_(buffer, non_blocking=True)
            captured.graph.replay()
            return Ticket(captured.result, _event())

    def _uncaptured(self, buffer: Tensor, layout: Layout, expected: dict[Layout, list[int]]) -> Ticket:
        with torch.cuda.stream(self.stream):
            inputs = buffer.to(self.device, non_blocking=True)
            result = self.run(layout.views(inputs), layout, expected.get(layout))
            host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            host.copy_(result, non_blocking=True)
            return Ticket(host, _event())

    def _captured(self, layout: Layout, buffer: Tensor, expected: dict[Layout, list[int]]) -> Captured:
        """The first batch of a bucket shows how many tokens are left where; tiles are chosen for that, the same in
        every lane: a text's result must not depend on which of them computes it."""
        self.captured.make_room()  # nothing of an idle lane is still running
        if not self.capture:
            nothing = Captured(torch.empty(0), torch.empty(0), None)
            self.captured.put(layout, nothing)
            return nothing
        inputs = buffer.to(self.device)
        views = layout.views(inputs)
        stream = self.stream
        assert stream is not None  # there is one to capture on
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if layout not in expected:
                expected[layout] = self.run.tokens_seen(self.run(views, layout, None).cpu(), layout)
            seen = expected[layout]
            result = self.run(views, layout, seen)  # compiles, which cannot happen during a capture
            host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            own_workspaces(),
            torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"),
        ):
            host.copy_(self.run(views, layout, seen), non_blocking=True)
        captured = Captured(inputs=inputs, result=host, graph=graph)
        self.captured.put(layout, captured)
        return captured


def _event() -> Any:
    """What the current stream has been given so far, to be waited for."""
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it without types
    event.record()
    return event
