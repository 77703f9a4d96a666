"""A model on packed batches on an NVIDIA GPU, in two ways of running."""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from thresher.core.plan import PruningPlan
from thresher.engine.arithmetic import FP8
from thresher.engine.backends.cpu import check_scales
from thresher.engine.backends.reference import DTYPES
from thresher.engine.cuda.batch import HostBatch, Layout, Packer
from thresher.engine.cuda.forward import Forward
from thresher.engine.cuda.graphs import REMEMBERED, Lane, OnePass, Ticket, bucket_of
from thresher.engine.cuda.ladder import few_buckets, rung_below, typical_sizes
from thresher.engine.cuda.later import Later, guessed
from thresher.engine.cuda.live import Numbers, OnHost, to_host
from thresher.engine.cuda.model import GpuModel, gpu_model
from thresher.engine.cuda.shelf import Demand
from thresher.engine.executor import Ids, Output, Types, batch_of, description
from thresher.engine.inputs import Tables, emptied
from thresher.engine.kernels.toolchain import RUNS_INTERPRETED
from thresher.engine.supported import check_supported
from thresher.engine.weights import LayerScales, Weights
from thresher.errors import ConfigError, ModelError
from thresher.text import first_line
from thresher.tokenizing.tokens import Tokens

# A GPU is idle for most of a small batch, and from about this size on gains little (benchmarks/gpu); the widest
# activations of a base-size model take 200 MiB at this size, in every lane.
TOKEN_BUDGET = 32_768
LANES = 3  # batches in flight: while one is copied and handed out, two keep the GPU busy
MODES = ("auto", "sync", "graph")
# fp32 is there for tests of decisions: it runs without tensor cores. fp8: products of layers in e4m3, all else fp16.
CUDA_DTYPES = ("fp16", "bf16", "fp32", FP8)
OLDEST = (8, 0)  # compute capability: Ampere, the first with bfloat16 and asynchronous copies
OLDEST_FP8 = (8, 9)  # Ada, the first with tensor cores for e4m3
# Graphs were faster, or at most 3% slower, at every size measured (benchmarks/gpu: up to 83,000 tokens); their memory
# grows with their room.
GRAPH_UP_TO_TOKENS = 98_304
STEADY_GRAPHS = 64  # in each lane of a steady executor; it prepares up to 49
# A graph saves milliseconds, and its capture costs tenths of a second in every lane: while people wait, only a bucket
# of every sixteenth batch is worth that (see REMEMBERED).
OFTEN = 128


@dataclass(eq=False)
class Begun:
    """A batch that was launched: in flight on a lane, or done, well or not."""

    batch: HostBatch
    lane: Lane | None = None
    ticket: Ticket | None = None
    output: Output | None = None
    error: Exception | None = None
    real: bool = True  # and not made up, to prepare for others


class CudaExecutor:
    """Mode "sync": library products on live rows, and one synchronisation per pruning layer, to count them. Mode
    "graph": capacity buffers, counts on the device, all in one CUDA graph. "auto": by the number of tokens, with limits
    that come from benchmarks/gpu. Kernels and decision rules are the same.
    """

    token_budget = TOKEN_BUDGET
    in_flight, by_length = LANES, False  # ragged kernels do not mind lengths
    on_cores = False
    window = 16_384

    def __init__(
        self,
        weights: Weights,
        plan: PruningPlan,
        *,
        dtype: str = "fp16",
        mode: str = "auto",
        device: str = "cuda",
        model: GpuModel | None = None,
        steady: bool = False,
        scales: Sequence[LayerScales] = (),
    ) -> None:
        """On device "cpu" the kernels need Triton's interpreter, and graphs are run without being captured. `model` is
        what was made of the same weights before; `scales`, one per layer, are what fp8 needs. steady: batches come one
        by one, of any size, and people wait for each: few sizes, and graphs are captured by `warm_up` and `catch_up`,
        or when a size comes often."""
        for name, value, known in (("mode", mode, MODES), ("dtype", dtype, CUDA_DTYPES)):
            if value not in known:
                raise ConfigError(f"{name} = {value!r} is not one of the cuda backend's: {', '.join(known)}")
        check_supported("cuda", weights.specs)
        _check_device(device, dtype)
        on_gpu = device.startswith("cuda")
        self.plan, self.dtype, self.mode, self.device, self.steady = plan, dtype, mode, device, steady
        self.shape, self.tables = weights.shape, Tables.of(weights)
        if model is None and dtype == FP8:
            check_scales(scales, weights)
        half = DTYPES["fp16" if dtype == FP8 else dtype]
        self.model = model or gpu_model(weights, dtype=half, device=device, scales=scales if dtype == FP8 else ())
        self.forward = Forward(self.model, plan)
        # The packer needs to know how positions are counted, and no matrix.
        self._small = replace(weights, layers=[], word=torch.empty_like(weights.word, device="meta"))
        self.packer = Packer(self._small, self.tables, plan, pinned=on_gpu)
        one_pass, demand = OnePass(self.forward), Demand[Layout](most=REMEMBERED)
        shelves: Any = {"room": STEADY_GRAPHS, "often": OFTEN} if steady else {}
        self.lanes = [Lane(one_pass, demand, device=device, capture=on_gpu, **shelves) for _ in range(LANES)]
        self.later = Later(STEADY_GRAPHS, prunings=len(plan.pruning_layers)) if steady else None
        self._idle, self._flying = list(self.lanes), list[Begun]()
        self._expected: dict[Layout, list[int]] = {}
        self._computing = threading.Lock()  # a lane has one place for its inputs

    def describe(self) -> dict[str, Any]:
        graphs = sum(lane.captured.made for lane in self.lanes)
        return {**description(self, backend="cuda"), "mode": self.mode, "mode_why": self._why(), "graphs": graphs}

    @property
    def stalls(self) -> int:
        return sum(lane.stalls for lane in self.lanes)

    def fitting(self, tokens: int) -> int:
        return rung_below(tokens) if self.steady else tokens

    def typical_sizes(self, longest: int) -> list[tuple[int, int]]:
        found = typical_sizes(budget=self.token_budget, longest=longest)
        return found if self.steady else found[:1]

    def _why(self) -> str:
        if self.mode != "auto":
            return f"{self.mode} was asked for"
        return (
            f"batches of up to {GRAPH_UP_TO_TOKENS} tokens run as one CUDA graph, bigger ones with library products: "
            "graphs were faster, or nearly as fast, wherever both were measured, see benchmarks/gpu"
        )

    def with_plan(self, plan: PruningPlan) -> "CudaExecutor":
        """The same model and matrices with another plan."""
        options: Any = {"dtype": self.dtype, "mode": self.mode, "device": self.device, "model": self.model}
        return CudaExecutor(self._small, plan, **options, steady=self.steady)

    def compute(self, input_ids: Ids, token_types: Types = None) -> Output:
        return self.run(self.pack(input_ids, token_types))

    def warm_up(self, batches: Sequence[Tokens]) -> None:
        for tokens in batches:
            packed = self.pack(tokens)
            if self.later is not None and packed.layout not in self._expected:
                kept = self.finish(self.launch(packed, real=False)).kept[:, list(self.plan.pruning_layers)]
                self._expected[packed.layout] = guessed(packed.layout, [tokens.total, *kept.sum(0).tolist()])
            self._on_every_lane(packed)

    def catch_up(self) -> None:
        """One graph in every lane: for the size without one that came most often, or else one for what texts keep."""
        if self.later is None:
            return
        batches, counts = self.later.batches, self.lanes[0].demand.counts
        for layout in sorted(batches, key=lambda each: -counts[each]):
            if any(layout not in lane.captured and lane.captured.admits(layout) for lane in self.lanes):
                return self._on_every_lane(batches[layout])
        for layout, packed in batches.items():
            everywhere = all(layout in lane.captured for lane in self.lanes)
            better = self.later.better(layout, self._expected.get(layout)) if everywhere else None
            if better is not None:
                with self._computing:
                    self._settle_all()
                    self._expected[layout] = better
                    for lane in self.lanes:
                        lane.captured.drop(layout)
                return self._on_every_lane(packed)

    def _on_every_lane(self, packed: HostBatch) -> None:
        """Compute a batch with a graph in each, because each has graphs of its own."""
        with self._computing:
            self._settle_all()
        begun = [self.launch(packed, real=False, capture_now=self.steady) for _ in range(self.in_flight)]
        for each in begun:
            self.finish(each)

    @torch.inference_mode()
    def pack(self, input_ids: Ids, token_types: Types = None) -> HostBatch:
        """The part of the work that needs no GPU."""
        tokens = batch_of(input_ids, token_types)
        sizes = {"tokens": tokens.total, "sequences": len(tokens)}
        mode = self.mode
        if mode == "auto":
            mode = "graph" if sizes["tokens"] <= GRAPH_UP_TO_TOKENS else "sync"
        longest, typed = int(tokens.lengths.max()), self.packer.typed
        if mode == "graph":
            bucket = few_buckets if self.steady else bucket_of
            layout = bucket(**sizes, longest=longest, positions=self.tables.positions, typed=typed)
        else:
            layout = Layout(**sizes, max_length=longest, typed=typed)
        return HostBatch(self.packer.fill(layout, tokens), layout, torch.from_numpy(tokens.lengths), mode)

    @torch.inference_mode()
    def launch(self, packed: HostBatch, *, real: bool = True, capture_now: bool = False) -> "Begun":
        """Copy to the GPU and begin to compute. Where no lane is free, the oldest batch in flight is finished first,
        whoever launched it: nobody waits for a stream that is not read on."""
        with self._computing:
            begun = Begun(packed, real=real)
            if packed.mode == "sync":
                begun.output = self._run_sync(packed)
                return begun
            if not self._idle:
                self._settle(self._flying[0])
            lane = next((lane for lane in self._idle if packed.layout in lane.captured), self._idle[0])
            if self.later is not None:
                self.later.remember(packed)
                self._expect(packed.layout)
            begun.ticket = lane.launch(packed.buffer, packed.layout, self._expected, capture_now=capture_now)
            begun.lane = lane
            self._idle.remove(lane)
            self._flying.append(begun)
            return begun

    def finish(self, begun: "Begun") -> Output:
        if begun.ticket is not None and begun.output is None:
            with contextlib.suppress(Exception):  # the same failure is met below, where the lane is given back
                begun.ticket.wait()  # outside of the lock: others may launch meanwhile
        with self._computing:
            if begun in self._flying:
                self._settle(begun)
        if begun.output is None:
            raise begun.error or ModelError("the batch was not computed")
        return begun.output

    def run(self, packed: HostBatch) -> Output:
        """Copy a packed batch to the GPU, compute, and copy the results back."""
        return self.finish(self.launch(packed))

    def check_alive(self) -> None:
        """After some failures (an illegal address, a launch that failed) every later call fails in this process."""
        if not self.device.startswith("cuda"):
            return
        try:
            torch.cuda.synchronize(self.device)
        except Exception as error:
            raise ModelError(
                f"the GPU failed and answers nothing any more in this process: {first_line(error)}; start it anew, and "
                "report what it computed"
            ) from error

    def _expect(self, layout: Layout) -> None:
        """Of a new size the same as of another one with as many tokens: these kernels are compiled already."""
        if layout not in self._expected:
            alike = next((known for size, known in self._expected.items() if size.tokens == layout.tokens), None)
            if alike is not None:
                self._expected[layout] = alike

    def _settle_all(self) -> None:
        while self._flying:
            self._settle(self._flying[0])

    def _settle(self, begun: "Begun") -> None:
        """Take a batch's results from its lane, which is free then. After a Ctrl-C in here the batch is still in
        flight, and whoever needs the lane next tries again."""
        lane, ticket = begun.lane, begun.ticket
        assert lane is not None and ticket is not None  # it is in flight
        try:
            ticket.wait()
            outputs, starts = lane.run.apart(ticket.result, begun.batch.layout)
            begun.output = self._output(outputs, list(starts[1:]), begun.batch)
            if self.later is not None and begun.real:
                self.later.count(starts[:, -1].tolist())
        except Exception as error:
            begun.error = error
        self._flying.remove(begun)
        self._idle.append(lane)

    def _run_sync(self, batch: HostBatch) -> Output:
        inputs = batch.layout.views(batch.buffer.to(self.device, non_blocking=True))
        counts = OnHost(inputs, batch.layout)
        outputs = self.forward(inputs, counts)
        return self._output(to_host(outputs).numpy(), counts.starts, batch)

    def _output(self, outputs: Numbers, starts: Sequence[Numbers], batch: HostBatch) -> Output:
        """From what came back: lengths change at the pruning layers only; from the layer `alone` on, one token is left.

        In numpy, because a batch of one text has no time for a dozen operations of torch.
        """
        texts = len(batch.lengths)
        kept = np.ones((texts, self.shape.layers), np.int64)
        lengths = [batch.lengths.numpy(), *(each[1 : texts + 1] - each[:texts] for each in starts)]
        bounds = [0, *self.plan.pruning_layers, self.plan.alone]
        for found, (start, stop) in zip(lengths, pairwise(bounds), strict=True):
            kept[:, start:stop] = found[:, None]
        if not kept.all():  # the states that they leave behind would pass for an answer
            raise emptied(self.plan)
        kept[:, self.plan.whole_from :] = lengths[0][:, None]
        rows = int(batch.lengths.sum()) if self.plan.reads == "tokens" else texts
        return Output(outputs=torch.from_numpy(outputs[:rows].copy()), kept=torch.from_numpy(kept))


def _check_device(device: str, dtype: str) -> None:
    if find_spec("triton") is None:
        raise ConfigError("the GPU kernels need Triton, which is not installed; pip install triton, or use the CPU")
    if not device.startswith("cuda"):
        if not RUNS_INTERPRETED:
            raise ConfigError(f"on device {device} the GPU kernels can only be interpreted; set TRITON_INTERPRET=1")
        return
    if not torch.cuda.is_available():
        raise ModelError("device cuda is not available here; use device = 'cpu', and see: thresher doctor")
    found, eight = torch.cuda.get_device_capability(device), dtype == FP8
    oldest = OLDEST_FP8 if eight else OLDEST
    if found < oldest:
        instead = "dtype = 'fp16'" if eight and found >= OLDEST else "device = 'cpu', or backend = 'reference'"
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}; "
            f"{'fp8 needs' if eight else 'the kernels need'} {oldest[0]}.{oldest[1]} or newer; use {instead}"
        )
