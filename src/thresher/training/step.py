"""One optimizer step: as torch runs it, or recorded once for every shape of batch and then replayed as a CUDA graph.

A small encoder's step is some two thousand kernels of a few microseconds; replayed, they cost the host next to nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from thresher.errors import RunError
from thresher.hardware import own_workspaces
from thresher.models.attach import gates_of
from thresher.training.objective import Loss, Losses

Batch = dict[str, Tensor]
WARM_UP = 2  # steps of a shape before it is recorded: libraries allocate their workspaces in the first


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """With a mask, at 64, 192, ... tokens and far below zero, the backward pass of cuDNN's gives NaN (pytorch issue
    196678), and recorded steps have such lengths."""
    allowed = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)


@dataclass(frozen=True)
class Step:
    """Forward, backward, clipping and update. Called with this process's (batch, weight) pairs, on the device.

    Gradients that are not finite would spoil all weights: such a step changes none and is counted in `passed_over`.
    Returns the weighted sum of loss, relative FLOPs and the shares of tokens that every layer keeps, or only the loss
    where nothing is pruned.
    """

    loss: Callable[[nn.Module, Batch], Losses]
    model: Any
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    clip: float
    bf16: bool
    passed_over: Tensor  # a number

    def __call__(self, parts: Sequence[tuple[Batch, float]]) -> Tensor:
        sums: Tensor | None = None
        for index, (batch, weight) in enumerate(parts):
            last = index == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                for loss in self._losses(batch):
                    self.accelerator.backward(loss.total * weight)
                    measured = loss.measured() * weight
                    sums = measured if sums is None else sums + measured
        assert sums is not None  # a step has at least one part
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
        assert norm is not None  # accelerate gives it wherever gradients are not sharded
        self._update(spoiled=(~torch.isfinite(norm)).float())
        self.optimizer.zero_grad(set_to_none=True)
        return sums

    def _losses(self, batch: Batch) -> Iterator[Loss]:
        """Forward passes one by one; what the caller does between two of them is not under their settings."""
        with self._forward():
            found = self.loss(self.model, batch)
        parts = iter([found]) if isinstance(found, Loss) else found
        while True:
            with self._forward():
                part = next(parts, None)
            if part is None:
                return
            yield part

    @contextmanager
    def _forward(self) -> Iterator[None]:
        device = self.accelerator.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self.bf16), without_cudnn_attention():
            yield

    def _update(self, *, spoiled: Tensor) -> None:
        self.passed_over.add_(spoiled)
        if spoiled.is_cuda:  # the optimizer's own kernel looks: a recorded step cannot branch
            self.optimizer.found_inf = spoiled  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not spoiled:
            self.optimizer.step()


class NumbersMadeThere(TorchFunctionMode):
    """torch.tensor(0.5) as a fill on the device: while recording, nothing may be copied from the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tensor and isinstance(args[0], bool | int | float):
            return torch.full((), args[0], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Recorded:
    """A step whose kernels are recorded for each shape of batch, anew where another layer leaves first tokens alone.

    What changes from step to step, such as thresholds and learning rates, must lie in tensors; what the host reads or
    decides is recorded as it was.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}

    def __call__(self, parts: Sequence[tuple[Batch, float]]) -> Tensor:
        ((batch, weight),) = parts
        gates = gates_of(self._step.model)
        gates.alone_from = gates.first_alone()
        shape = (*batch["input_ids"].shape, gates.alone_from)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if shape not in self._graphs and self._seen[shape] < WARM_UP:
                self._seen[shape] += 1
                sums = self._step(parts)
            else:
                if shape not in self._graphs:
                    self._graphs[shape] = self._record(batch, weight)
                graph, inputs, sums = self._graphs[shape]
                for name, value in batch.items():
                    inputs[name].copy_(value)
                graph.replay()
        torch.cuda.current_stream().wait_stream(self._stream)
        return sums

    def _record(self, batch: Batch, weight: float) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        inputs = {name: value.clone() for name, value in batch.items()}
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values()))[0].pool() if self._graphs else None  # graphs run one after another
        device = self._step.accelerator.device
        try:
            capture = torch.cuda.graph(graph, pool=pool, stream=self._stream)
            with own_workspaces(), capture, device, NumbersMadeThere():
                sums = self._step([(inputs, weight)])
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"this model's steps cannot be recorded: {reason}; train with --set record=false") from error
        return graph, inputs, sums
