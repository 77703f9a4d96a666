"""The rows of the benchmark, built from folders on disk.

A Spec is small and can be sent to another process. Libraries are imported by the contender that needs them, so that the
memory of an onnxruntime row has no torch in it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from thresher.evaluation.exported import PREFIX, Exported
from thresher.evaluation.rivals import Row, open_onnxruntime, open_openvino, padded
from thresher.hardware import native_bf16_on_cpu

# logits (batch, outputs), or of tokens (total, outputs) end to end, and for our engine kept (batch, layers)
Result = tuple[NDArray[np.float32], NDArray[np.int64] | None]
Run = Callable[[Sequence[Row]], Result]
R = TypeVar("R", bound=Row)
SORTED = ", sorted"
EAGER, COMPILED, UNPADDED = "hugging face eager", "hugging face compiled", "torch unpadded"
STACK = "sentence transformers"
ONNX = ", onnx backend"


@dataclass(frozen=True)
class Tokens:
    """A Row and nothing else."""

    input_ids: list[int]
    token_type_ids: list[int] | None


@dataclass(frozen=True)
class Spec:
    """One row: the engine's name, its arithmetic and the file or folder it loads; `scales`: our int8-static's file.

    `mode` is our GPU engine's. Padded batches are at least `width` wide: what is compiled wants few different shapes.
    `means`: what the outputs are. Rows whose name ends in ", sorted" get their texts sorted by length, the best case
    for padding.
    """

    engine: str
    dtype: str
    path: Path
    pad_id: int
    threads: int
    scales: Path | None = None
    device: str = "cpu"
    mode: str | None = None
    width: int = 0
    means: str = "classes"

    @property
    def kind(self) -> str:
        return self.engine.removesuffix(SORTED)

    @property
    def prunes(self) -> bool:
        return "pruned" in self.engine

    def order(self, rows: Sequence[Row]) -> list[int]:
        """The rows' numbers in the order this contender gets them."""
        numbers = list(range(len(rows)))
        return sorted(numbers, key=lambda i: len(rows[i].input_ids)) if self.engine.endswith(SORTED) else numbers

    def batches(self, rows: Sequence[R], batch_size: int) -> list[list[R]]:
        ordered = [rows[i] for i in self.order(rows)]
        return [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]


@dataclass(frozen=True)
class Contender:
    """A loaded row. `counts_last`: its kept counts hold for the last layer too, of which it computes one token only;
    `alone`: our engine's layer that passes on first tokens only.

    `attention` is the kind that a torch rival runs, where there are several.
    """

    spec: Spec
    run: Run
    counts_last: bool = False
    alone: int | None = None
    attention: str | None = None


def build(spec: Spec) -> Contender:
    """Load a contender; several rows may share the result's `run`."""
    if spec.kind == "onnxruntime":
        return Contender(spec, _on_padded(open_onnxruntime(spec.path, threads=spec.threads), spec))
    if spec.kind.startswith(PREFIX):
        exported = Exported(spec.path, threads=spec.threads)
        about = exported.about
        return Contender(spec, exported, counts_last=about["counts_last"], alone=about["alone"])
    if spec.kind == "openvino":
        # What NNCF leaves in floating point runs in bf16 where that is native: the plugin's own choice, and the faster.
        wants_bf16 = spec.dtype == "bf16" or (spec.dtype == "int8" and native_bf16_on_cpu())
        precision = "bf16" if wants_bf16 else "f32"
        forward = open_openvino(spec.path, precision=precision, threads=spec.threads)
        return Contender(spec, _on_padded(forward, spec))

    import torch

    torch.set_num_threads(spec.threads)
    if spec.kind == UNPADDED:
        return _unpadded(spec)
    if spec.kind == STACK:
        return _stack(spec)
    return _hugging_face(spec) if spec.kind.startswith("hugging face") else _thresher(spec)


def _on_padded(forward: Callable[[Any], NDArray[np.float32]], spec: Spec) -> Run:
    return lambda rows: (forward(padded(rows, spec.pad_id, width=spec.width)), None)


def _hugging_face(spec: Spec) -> Contender:
    """The stock forward with its own attention (SDPA where the family has it), or with eager attention, or compiled.

    bf16 and fp16 mean a converted model, which is faster than autocast.
    """
    import torch

    from thresher.core.heads import OF_TOKENS
    from thresher.engine.backends.reference import DTYPES
    from thresher.models.checkpoint import load_dense
    from thresher.models.heads import outputs_in

    model = load_dense(spec.path, whole=True)[0].eval().to(spec.device, DTYPES[spec.dtype])
    if spec.kind == EAGER:
        model.set_attn_implementation("eager")
    attention = model.config._attn_implementation
    if spec.kind == COMPILED:
        model = torch.compile(model, mode="reduce-overhead", dynamic=False)

    @torch.inference_mode()
    def forward(inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        there = {name: torch.from_numpy(value).to(spec.device) for name, value in inputs.items()}
        found = outputs_in(model(**there))
        if spec.means in OF_TOKENS:
            found = found[there["attention_mask"].bool()]
        return np.asarray(found.float().cpu().numpy())

    return Contender(spec, _on_padded(forward, spec), attention=attention)


def _stack(spec: Spec) -> Contender:
    """sentence-transformers, with the attention that it chooses."""
    from thresher.evaluation.sentence_stack import open_sentence_transformers

    forward = open_sentence_transformers(
        spec.path, means=spec.means, pad_id=spec.pad_id, dtype=spec.dtype, device=spec.device
    )
    return Contender(spec, lambda rows: (forward(rows), None))


def _unpadded(spec: Spec) -> Contender:
    """The dense model without padding, in plain torch."""
    from thresher.engine.weights import read_weights
    from thresher.evaluation.unpadded import UnpaddedDense
    from thresher.models.checkpoint import load_dense

    weights = read_weights(load_dense(spec.path, whole=True)[0])
    model = UnpaddedDense(weights, dtype=spec.dtype, device=spec.device)

    def run(rows: Sequence[Row]) -> tuple[NDArray[np.float32], None]:
        return model.logits([row.input_ids for row in rows], [row.token_type_ids for row in rows]).numpy(), None

    return Contender(spec, run, attention=model.attention)


def _thresher(spec: Spec) -> Contender:
    """Our engine: the pruned run, or the dense folder without gates."""
    from thresher.engine.engine import Engine
    from thresher.engine.scales import load_scales

    scales = load_scales(spec.scales) if spec.scales is not None else []
    model, tokenizer = load_ours(spec.kind.removesuffix(ONNX), spec.path)
    ways: dict[str, Any] = {"backend": "onnx"} if spec.kind.endswith(ONNX) else {"mode": spec.mode or "auto"}
    engine = Engine.from_model(model, tokenizer, device=spec.device, dtype=spec.dtype, scales=scales, **ways)
    executor = engine.executor

    def run(rows: Sequence[Row]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        output = executor.compute([row.input_ids for row in rows], [row.token_type_ids for row in rows])
        return output.outputs.numpy(), output.kept.numpy()

    plan = executor.plan
    counts_last = plan.restores or (plan.thresholds[-1] == math.inf and plan.protect == ("first",))
    return Contender(spec, run, counts_last=counts_last, alone=plan.alone)


def load_ours(kind: str, path: Path) -> tuple[Any, Any]:
    """Model and tokenizer of one of our rows; the dense row's model has no gates, even where the folder is a run."""
    from thresher.models.checkpoint import load, load_dense

    if kind == "thresher dense":
        return load_dense(path, whole=True)
    checkpoint = load(path)
    return checkpoint.model, checkpoint.tokenizer
