"""What every part of the GPU benchmark shares: the model, texts of given lengths, times, and records."""

import contextlib
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from book import Book
from torch import Tensor

from thresher.config import PruneConfig
from thresher.core.cost import dense_macs, engine_macs, engine_relative_flops, flops, relative_flops
from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import DTYPES
from thresher.engine.cuda.executor import CudaExecutor
from thresher.engine.weights import Weights, read_weights

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import made_by  # noqa: E402

# Mean and maximum length in tokens.
LENGTHS = {"qnli": (52, 114), "squad": (162, 382), "sst2": (28, 72)}
SEED = 0
# Share of the tokens that mpnet-base trained on QNLI keeps after each layer but the last: thresholds for random weights
# are searched for until they keep the same. 0 stands for first tokens only.
KEPT = {
    # at 0.51 relative FLOPs, on 200 texts of the validation set; no threshold is zero
    "ltp": (1.0, 1.0, 1.0, 1.0, 0.842, 0.475, 0.179, 0.099, 0.088, 0.082, 0.052),
    # at 0.46, experiments/table1, seed 0; layers that keep everything have no threshold
    "thresher": (1.0, 1.0, 1.0, 1.0, 0.692, 0.368, 0.041, 0.0, 0.0, 0.0, 0.0),
}
SCORES = {"ltp": "attention", "thresher": "value"}
LOW = 0.01  # a threshold that drops next to nothing, but has to be looked at
# Random weights attend almost evenly, so that all scores are nearly 1 and no threshold divides them: queries and keys
# are scaled up until scores are spread about as widely as a trained model's.
SHARPER = 5.0


def lengths_like(name: str, count: int, *, seed: int = SEED) -> list[int]:
    """Lengths of a data set's shape: a gamma distribution with its mean, cut at its maximum."""
    mean, longest = LENGTHS[name]
    drawn = np.random.default_rng(seed).gamma(6.0, mean / 6.0, max(count, 1024))
    cut = np.clip(drawn * mean / np.clip(drawn, 4, longest).mean(), 4, longest).round().astype(int)
    return [int(length) for length in cut[:count]]


def texts_of(lengths: Sequence[int], *, seed: int = SEED) -> list[list[int]]:
    """Random token ids; the ids of special tokens are left out."""
    drawn = np.random.default_rng(seed).integers(10, 50000, sum(lengths))
    return [part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def base_model(
    *, positions: int = 512, layers: int = 12, width: int = 768, heads: int | None = None, attention: str = "sdpa"
) -> Any:
    """RoBERTa-base's shape with random weights, the same every time; heads of 64 where their number is not given."""
    import transformers

    library: Any = transformers
    torch.manual_seed(SEED)
    config = library.RobertaConfig(
        vocab_size=50265,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads or width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=positions + 2,
        type_vocab_size=1,
        num_labels=2,
        pad_token_id=1,
    )
    config._attn_implementation = attention
    model = library.RobertaForSequenceClassification(config).eval()
    with torch.no_grad():
        for layer in model.roberta.encoder.layer:
            layer.attention.self.query.weight.mul_(SHARPER)
            layer.attention.self.key.weight.mul_(SHARPER)
    return model


class Setting:
    """One model on one device, its thresholds, and the file of records."""

    def __init__(self, arguments: Any) -> None:
        self.arguments, self.device, self.dtype = arguments, arguments.device, arguments.dtype
        self.out = Path(arguments.out)
        self.pruning = PruneConfig(score=arguments.score or SCORES[arguments.profile])
        self.sizes: dict[str, Any] = {"layers": 3, "width": 128} if arguments.tiny else {}
        self.weights: Weights = read_weights(base_model(**self.sizes))
        about = {**made_by("gpu/bench.py", device=self.device), "seed": SEED}
        key = ("bench", "engine", "mode", "lengths", "batch", "dtype")
        self.book = Book(self.out, about, key=key, seconds=arguments.limit)
        self.found: list[float] = [float(word) for word in (arguments.thresholds or "").split(",") if word]
        self.rows: list[dict[str, Any]] = []

    @property
    def layers(self) -> int:
        return self.weights.shape.layers

    def name(self, *, pruned: bool) -> str:
        """Of our engine, in records."""
        if not pruned:
            return "thresher-dense"
        if self.arguments.profile == "thresher":
            return "thresher-pruned-thresher"
        return "thresher-pruned" if self.pruning.score == "attention" else "thresher-pruned-by-value"

    def engine(self, *, pruned: bool, mode: str, weights: Weights | None = None) -> CudaExecutor:
        plan = self.plan(self.thresholds()) if pruned else PruningPlan.dense(self.layers)
        return CudaExecutor(weights or self.weights, plan, dtype=self.dtype, mode=mode, device=self.device)

    def plan(self, thresholds: Sequence[float]) -> PruningPlan:
        return PruningPlan(thresholds=tuple(thresholds), score=self.pruning.score, scale=self.pruning.scale)

    def compiled(self) -> Any:
        """Hugging Face's model under torch.compile, which takes minutes for every new shape."""
        model = base_model(attention="sdpa", **self.sizes).to(self.device, DTYPES[self.dtype])
        return torch.compile(model, mode="reduce-overhead", dynamic=False)

    def thresholds(self) -> list[float]:
        """With which QNLI-like texts lose as many tokens, layer by layer, as a trained model drops; by bisection."""
        if self.found:
            return self.found
        texts = texts_of(lengths_like("qnli", 4 if self.arguments.tiny else 64, seed=7), seed=7)
        lengths = torch.tensor([len(text) for text in texts])
        profile = KEPT[self.arguments.profile]
        found = [LOW if self.arguments.profile == "ltp" else 0.0] * (self.layers - 1) + [math.inf]
        engine = CudaExecutor(self.weights, self.plan(found), dtype=self.dtype, mode="sync", device=self.device)
        for layer in range(self.layers - 1):
            share = profile[layer * len(profile) // (self.layers - 1)]
            if share in (0, 1):
                found[layer] = math.inf if share == 0 else found[layer]
                continue
            low, high = LOW, 10.0
            for _ in range(4 if self.arguments.tiny else 14):
                middle = (low * high) ** 0.5
                tried = self.plan([*found[:layer], middle, *[0.0] * (self.layers - layer - 2), math.inf])
                kept = engine.with_plan(tried).compute(texts).kept
                low, high = (middle, high) if float(kept[:, layer].sum() / lengths.sum()) > share else (low, middle)
            found[layer] = round((low * high) ** 0.5, 4)
        kept = engine.with_plan(self.plan(found)).compute(texts).kept
        print(f"relative FLOPs {float(relative_flops(self.weights.shape, lengths, kept)):.3f}, kept by layer", end=" ")
        print(" ".join(f"{share:.2f}" for share in (kept.sum(0) / lengths.sum()).tolist()))
        print(f"--thresholds {','.join(map(str, found))}", flush=True)
        self.found = found
        return found

    def cost(self, lengths: Sequence[int], kept: Tensor | None, alone: int | None) -> dict[str, float]:
        """FLOPs of a batch. Rivals compute all of the dense model; ours what packed execution really computes."""
        shape, sizes = self.weights.shape, torch.tensor(lengths)
        dense = float(flops(dense_macs(shape, sizes)).sum())
        if kept is None:
            return {"flops": dense, "dense_flops": dense, "relative_flops": 1.0, "engine_relative_flops": 1.0}
        return {
            "flops": float(flops(engine_macs(shape, sizes, kept, alone=alone)).sum()),
            "dense_flops": dense,
            "relative_flops": float(relative_flops(shape, sizes, kept)),
            "engine_relative_flops": engine_relative_flops(shape, sizes, kept, alone=alone),
        }

    def record(self, **row: Any) -> None:
        """One line to the file at once, so that an interrupted run keeps what it measured, and one to the screen."""
        self.rows.append({"dtype": self.dtype, **row})
        self.book.add(**self.rows[-1])
        names = ("bench", "engine", "mode", "lengths", "batch")
        text = " ".join(f"{row.get(name, '')!s:>12}" for name in names)
        values = {name: row[name] for name in ("ms_p50", "sequences_per_s", "useful_tflops", "error") if name in row}
        shown = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
        print(f"{text}  {shown}", flush=True)

    def wants(self, **row: Any) -> bool:
        """Whether this is still to be measured, and there is time for it."""
        return self.book.wants(**{"dtype": self.dtype, **row})

    @contextlib.contextmanager
    def attempt(self, **row: Any) -> Any:
        """A failure is a record, too, and the next measurement goes on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc(limit=4)
            self.record(**row, error=f"{type(error).__name__}: {str(error)[:300]}")
            if self.device != "cpu":
                torch.cuda.empty_cache()

    def measure(
        self,
        work: Callable[[], object],
        sizes: Sequence[int],
        kept: Tensor | None,
        *,
        alone: int | None = None,
        **row: Any,
    ) -> float:
        """Time whole calls, host to host, and record. kept, alone: of our engines."""
        times = whole_times(work, self.device, seconds=self.arguments.seconds)
        cost, middle = self.cost(sizes, kept, alone), float(np.median(times))
        self.record(
            **row,
            batch=len(sizes),
            tokens=sum(sizes),
            ms_p50=middle,
            ms_p10=float(np.quantile(times, 0.1)),
            ms_p90=float(np.quantile(times, 0.9)),
            repeats=len(times),
            sequences_per_s=1000 * len(sizes) / middle,
            useful_tflops=cost["flops"] / middle / 1e9,
            dense_equivalent_tflops=cost["dense_flops"] / middle / 1e9,
            relative_flops=cost["relative_flops"],
            engine_relative_flops=cost["engine_relative_flops"],
        )
        return middle


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def whole_times(work: Callable[[], object], device: str, *, seconds: float, warm: int = 3) -> list[float]:
    """Milliseconds of single calls, from the start to the end of the device's work, for about so many seconds."""
    for _ in range(warm):
        work()
    wait(device)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 200):
        start = time.perf_counter()
        work()
        wait(device)
        times.append(1000 * (time.perf_counter() - start))
    return times


def kernel_ms(work: Callable[[], object], device: str) -> float:
    """Median milliseconds of a short piece of device work, without the launch."""
    if device == "cpu":
        return float(np.median(whole_times(work, device, seconds=0.01, warm=1)))
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(work, rep=15, return_mode="median"))
