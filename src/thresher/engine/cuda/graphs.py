"""The whole forward as one CUDA graph per bucket of sizes: no launch and no waiting between copy in and copy out."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.engine.cuda.batch import Inputs, Layout
from thresher.engine.cuda.forward import Forward
from thresher.engine.cuda.live import Numbers, OnDevice

FINE_FROM = 2048  # tokens
_capturing = threading.Lock()  # while one engine captures, no other may wait for the device
GRAPHS = 32  # kept at a time; the one that was not used for longest goes first


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
        """Outputs (sequences, outputs), and where sequences start, (1 + prunings, sequences + 1)."""
        rows = 1 + len(self.forward.plan.pruning_layers)
        numbers: Numbers = result.numpy()
        split = len(numbers) - rows * (layout.sequences + 1)
        outputs = numbers[:split].view(np.float32).reshape(layout.sequences, -1)
        return outputs, numbers[split:].reshape(rows, -1)

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
        sequences=1 << (sequences - 1).bit_length(),
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


class Graphs:
    """Captured lazily. Without `capture`, for the interpreter, the same work is run anew each time."""

    def __init__(self, run: OnePass, *, device: str, capture: bool) -> None:
        self.run, self.device, self.capture = run, device, capture
        self.captured: OrderedDict[Layout, Captured] = OrderedDict()
        # One pool for all: a replay's intermediates are dead at its end, and replays never overlap. One stream, too:
        # memory that was freed on one is not given out on another.
        self.pool = torch.cuda.graph_pool_handle() if capture else None
        self.stream = torch.cuda.Stream() if capture else None  # type: ignore[no-untyped-call]

    def __call__(self, buffer: Tensor, layout: Layout) -> Tensor:
        """The result for a filled buffer, both on the host; valid until the next call."""
        if not self.capture:
            return self.run(layout.views(buffer.to(self.device)), layout, None)
        captured = self.captured.get(layout)
        if captured is None:
            with _capturing:
                captured = self._captured(layout, buffer)
        self.captured.move_to_end(layout)
        captured.inputs.copy_(buffer, non_blocking=True)
        captured.graph.replay()
        torch.cuda.current_stream().synchronize()
        return captured.result

    def _captured(self, layout: Layout, buffer: Tensor) -> Captured:
        """The first batch of a bucket shows how many tokens are left where; tiles are chosen for that."""
        while len(self.captured) >= GRAPHS:
            torch.cuda.synchronize()
            self.captured.popitem(last=False)
        inputs = buffer.to(self.device)
        views = layout.views(inputs)
        stream = self.stream
        assert stream is not None  # there is one to capture on
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            expected = self.run.tokens_seen(self.run(views, layout, None).cpu(), layout)
            result = self.run(views, layout, expected)  # compiles, which cannot happen during a capture
            host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
            host.copy_(self.run(views, layout, expected), non_blocking=True)
        self.captured[layout] = Captured(inputs=inputs, result=host, graph=graph)
        return self.captured[layout]
