"""A classifier on packed batches on an NVIDIA GPU, with the interface of PackedClassifier, in two ways of running."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thresher.config import PruneConfig
from thresher.engine.backends.reference import DTYPES
from thresher.engine.cuda.batch import HostBatch, Inputs, Layout, Packer
from thresher.engine.cuda.forward import Forward, Live
from thresher.engine.cuda.graphs import Graphs, bucket_of
from thresher.engine.cuda.model import gpu_model
from thresher.engine.cuda.products import Count
from thresher.engine.inputs import Tables, description, scaled
from thresher.engine.kernels.prune import Kept
from thresher.engine.kernels.toolchain import RUNS_INTERPRETED
from thresher.engine.packed import Output
from thresher.engine.weights import Weights
from thresher.errors import ConfigError, ModelError

MODES = ("auto", "sync", "graph")
Numbers = npt.NDArray[Any]
CUDA_DTYPES = ("fp16", "bf16", "fp32")  # fp32 is there for tests of decisions: it runs without tensor cores
OLDEST = (8, 0)  # compute capability: Ampere, the first with bfloat16 and asynchronous copies
# Graphs were faster, or at most 3% slower, at every size measured (benchmarks/gpu: up to 83,000 tokens); their memory
# grows with their room.
GRAPH_UP_TO_TOKENS = 98_304


@dataclass(frozen=True)
class Place:
    """What stands in for a backend's object: names only."""

    name: str
    dtype: str
    device: str


class CudaClassifier:
    """Mode "sync": library products on live rows, and one synchronisation per pruning layer, to count them. Mode
    "graph": capacity buffers, counts on the device, all in one CUDA graph. "auto": by the number of tokens, with limits
    that come from benchmarks/gpu. Kernels and decision rules are the same.
    """

    def __init__(
        self,
        weights: Weights,
        dtype: str = "fp16",
        *,
        thresholds: Sequence[float],
        config: PruneConfig,
        dial: float = 1.0,
        mode: str = "auto",
        device: str = "cuda",
    ) -> None:
        """On device "cpu" the kernels need Triton's interpreter, and graphs are run without being captured."""
        self.thresholds = scaled(thresholds, config, dial)
        for name, value, known in (("mode", mode, MODES), ("dtype", dtype, CUDA_DTYPES)):
            if value not in known:
                raise ConfigError(f"{name} = {value!r} is not one of the cuda backend's: {', '.join(known)}")
        _check_device(device)
        on_gpu = device.startswith("cuda")
        self.backend = Place("cuda", dtype, device)
        self.config, self.dial, self.mode = config, dial, mode
        self.shape, self.tables = weights.shape, Tables.of(weights)
        self.outputs = len(weights.head_output.bias)
        model = gpu_model(weights, dtype=DTYPES[dtype], device=device)
        self.forward = Forward(model, self.thresholds, config)
        # The packer needs to know how positions are counted, and no matrix.
        small = replace(weights, layers=[], word=torch.empty(0))
        self.packer = Packer(small, self.tables, config, pinned=on_gpu)
        self.graphs = Graphs(self._without_host, self._tokens_seen, device=device, capture=on_gpu)
        self._computing = threading.Lock()  # graphs have one place for their inputs

    @property
    def alone(self) -> int:
        """The layer that passes on first tokens only."""
        return self.forward.alone

    def describe(self) -> dict[str, Any]:
        """What is computed, and how."""
        return {**description(self), "mode": self.mode, "mode_why": self._why()}

    def _why(self) -> str:
        if self.mode != "auto":
            return f"{self.mode} was asked for"
        return (
            f"batches of up to {GRAPH_UP_TO_TOKENS} tokens run as one CUDA graph, bigger ones with library products: "
            "graphs were faster, or nearly as fast, wherever both were measured, see benchmarks/gpu"
        )

    def logits(
        self, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int] | None] | None = None
    ) -> Output:
        """Classify token sequences of any lengths, in one packed batch. Missing token types are zeros."""
        return self.run(self.pack(input_ids, token_types))

    @torch.inference_mode()
    def pack(
        self, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int] | None] | None = None
    ) -> HostBatch:
        """The part of the work that needs no GPU."""
        lengths = self.packer.lengths(input_ids)
        sizes = {"tokens": int(lengths.sum()), "sequences": len(lengths)}
        mode = self.mode
        if mode == "auto":
            mode = "graph" if sizes["tokens"] <= GRAPH_UP_TO_TOKENS else "sync"
        longest, typed = int(lengths.max()), self.packer.typed
        if mode == "graph":
            layout = bucket_of(**sizes, longest=longest, positions=self.tables.positions, typed=typed)
        else:
            layout = Layout(**sizes, max_length=longest, typed=typed)
        return HostBatch(self.packer.fill(layout, input_ids, token_types), layout, lengths, mode)

    @torch.inference_mode()
    def run(self, batch: HostBatch) -> Output:
        """Copy a packed batch to the GPU, compute, and copy the results back."""
        with self._computing:
            return self._run_graph(batch) if batch.mode == "graph" else self._run_sync(batch)

    def _run_sync(self, batch: HostBatch) -> Output:
        layout = batch.layout
        inputs = layout.views(batch.buffer.to(self.backend.device, non_blocking=True))
        sequences = Count(None, layout.sequences)
        tokens = Count(None, layout.tokens)
        live = Live(inputs.cu_seqlens, inputs.positions, inputs.protected, layout.max_length, tokens, sequences)
        counted: list[Tensor] = []

        def settle(kept: Kept, before: Live) -> tuple[Live, Tensor | None]:
            """The one synchronisation of a pruning layer: the new lengths come to the host."""
            starts = self._to_host(kept.cu_seqlens)
            counted.append(starts)
            total, longest = int(starts[-1]), int(np.diff(starts.numpy()).max())
            if total == len(before.positions):
                return before, None
            tokens = Count(None, total)
            live = Live(kept.cu_seqlens, kept.positions[:total], kept.protected[:total], longest, tokens, sequences)
            return live, kept.rows[:total]

        logits = self.forward(inputs, live, settle)
        return self._output(self._to_host(logits).numpy(), [starts.numpy() for starts in counted], batch)

    def _run_graph(self, batch: HostBatch) -> Output:
        logits, starts = self._apart(self.graphs(batch.buffer, batch.layout), batch.layout)
        return self._output(logits, list(starts[1:]), batch)

    def _without_host(self, inputs: Inputs, layout: Layout, expected: Sequence[int] | None) -> Tensor:
        """Logits and the runs' starts after each pruning, in one int32 tensor: one copy brings them back."""
        starts: list[Tensor] = []
        expected = expected or [layout.tokens] * (1 + len(self.forward.pruning_layers))

        def settle(kept: Kept, before: Live) -> tuple[Live, Tensor | None]:
            starts.append(kept.cu_seqlens)
            live = replace(
                before,
                cu_seqlens=kept.cu_seqlens,
                positions=kept.positions,
                protected=kept.protected,
                tokens=Count(kept.cu_seqlens[-1:], expected[len(starts)]),
            )
            return live, kept.rows

        live = Live(
            cu_seqlens=inputs.cu_seqlens,
            positions=inputs.positions,
            protected=inputs.protected,
            max_length=layout.max_length,
            tokens=Count(inputs.cu_seqlens[-1:], expected[0]),
            sequences=Count(inputs.live_sequences, layout.sequences),
        )
        logits = self.forward(inputs, live, settle)
        return torch.cat([logits.view(torch.int32).flatten(), inputs.cu_seqlens, *starts])

    def _apart(self, result: Tensor, layout: Layout) -> tuple[Numbers, Numbers]:
        """Logits (sequences, outputs), and the runs' starts at first and after each pruning."""
        numbers, first = result.numpy(), layout.sequences * self.outputs
        logits = numbers[:first].view(np.float32).reshape(layout.sequences, self.outputs)
        return logits, numbers[first:].reshape(-1, layout.sequences + 1)

    def _tokens_seen(self, result: Tensor, layout: Layout) -> list[int]:
        """In all, and after each pruning."""
        seen: list[int] = self._apart(result, layout)[1][:, -1].tolist()
        return seen

    def _output(self, logits: Numbers, starts: Sequence[Numbers], batch: HostBatch) -> Output:
        """From what came back: lengths change at the pruning layers only, and in the end one token is passed on.

        In numpy, because a batch of one text has no time for a dozen operations of torch.
        """
        texts = len(batch.lengths)
        kept = np.ones((texts, self.shape.layers), np.int64)
        lengths = [batch.lengths.numpy(), *(each[1 : texts + 1] - each[:texts] for each in starts)]
        bounds = [0, *self.forward.pruning_layers, self.alone]
        for found, (start, stop) in zip(lengths, pairwise(bounds), strict=True):
            kept[:, start:stop] = found[:, None]
        return Output(logits=torch.from_numpy(logits[:texts].copy()), kept=torch.from_numpy(kept))

    def _to_host(self, values: Tensor) -> Tensor:
        """Copied through pinned memory; waits for the GPU."""
        if values.device.type == "cpu":
            return values
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        torch.cuda.current_stream(values.device).synchronize()
        return host


def _check_device(device: str) -> None:
    if find_spec("triton") is None:
        raise ConfigError("the GPU kernels need Triton, which is not installed; pip install triton, or use the CPU")
    if not device.startswith("cuda"):
        if not RUNS_INTERPRETED:
            raise ConfigError(f"on device {device} the GPU kernels can only be interpreted; set TRITON_INTERPRET=1")
        return
    if not torch.cuda.is_available():
        raise ModelError("device cuda is not available here; use device = 'cpu', and see: thresher doctor")
    found = torch.cuda.get_device_capability(device)
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}; the kernels need "
            f"{wanted} or newer; use device = 'cpu', or backend = 'reference'"
        )
