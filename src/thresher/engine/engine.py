"""The engine that users hold: texts in, predictions out, in packed batches that really drop tokens."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from thresher.config import PruneConfig
from thresher.engine.backends.base import Backend
from thresher.engine.choose import Cuda, choose_backend
from thresher.engine.packed import Output, PackedClassifier
from thresher.engine.steps import read_steps
from thresher.engine.texts import EncodedText, encode_texts
from thresher.engine.weights import LayerSteps, Weights, read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import GATES_NAME, gates_of, length_in_training
from thresher.models.checkpoint import MANIFEST, load, load_dense

if TYPE_CHECKING:
    from thresher.engine.cuda.classifier import CudaClassifier

Item = str | tuple[str, str]
CPU_TOKENS = 4096
# A GPU is idle for most of a small batch; the widest activations of a base-size model take 400 MiB at this size.
CUDA_TOKENS = 65_536


@dataclass(frozen=True)
class Prediction:
    """One text's result, or why there is none.

    Classification gives `label` and `probability`, regression gives `value`. `tokens` is the text's length and `kept`
    how many of them each layer passed on.
    """

    label: str | None = None
    probability: float | None = None
    value: float | None = None
    tokens: int = 0
    kept: tuple[int, ...] = ()
    truncated: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Batch:
    """Texts of a window by their numbers, and the call that computes them."""

    numbers: list[int]
    run: Callable[[], Output]


class Engine:
    """Classifies texts with a pruned or dense encoder.

    A text's result does not depend on the texts it is batched with, but for rounding: products of other shapes add up
    in another order. Texts of more than `max_length` tokens are truncated.
    """

    def __init__(
        self,
        packed: "PackedClassifier | CudaClassifier",
        tokenizer: Any,
        *,
        labels: Sequence[str],
        why: str,
        max_length: int | None = None,
    ) -> None:
        if max_length is not None and max_length < 4:
            raise ConfigError(f"max_length = {max_length} is below 4, the smallest allowed value")
        self.packed, self.tokenizer, self.labels, self.why = packed, tokenizer, list(labels), why
        self.max_length = min(max_length or packed.tables.positions, packed.tables.positions)
        # A tokenizer may have been given words that the model lacks, or number segments that it does not tell apart.
        words = len(tokenizer) if hasattr(tokenizer, "__len__") else math.inf
        self._may_miss = words > packed.tables.words or packed.tables.types == 1
        self._tokenizing = threading.Lock()  # a tokenizer keeps its truncation as state: one call at a time

    @staticmethod
    def load(
        path: str | Path,
        *,
        device: str = "auto",
        backend: str = "auto",
        dtype: str = "auto",
        mode: str = "auto",
        dial: float = 1.0,
        max_length: int | None = None,
    ) -> "Engine":
        """From a folder written by thresher, or any Hugging Face folder with a classification head.

        device: auto (a GPU that the kernels can run on, otherwise the CPU), cpu or cuda; backend: auto, cpu, cuda or
        reference; dtype: auto, fp32, bf16, on a GPU also fp16, on the CPU also int8 (activations quantized as they
        come) or int8-static (for a folder made by `thresher quantize`). mode, on a GPU: auto, sync (library products on
        the live tokens) or graph (CUDA graphs). `dial` scales the thresholds: 0 is dense, 1 as trained, more is faster;
        layers that leave only protected tokens do so at any dial above 0. `max_length` in tokens: as in training if not
        given, or else what the model can take.
        """
        folder = Path(path).expanduser()
        if (folder / MANIFEST).is_file():
            steps = read_steps(folder)
            checkpoint = load(path)
            model, tokenizer = checkpoint.model, checkpoint.tokenizer
        else:
            steps = []
            model, tokenizer = load_dense(path, whole=True)
        chosen = choose_backend(backend, dtype, device=device, mode=mode, steps=steps)
        return Engine.on_backend(model, tokenizer, *chosen, dial=dial, max_length=max_length)

    @staticmethod
    def from_model(
        model: Any,
        tokenizer: Any,
        *,
        device: str = "auto",
        backend: str = "auto",
        dtype: str = "auto",
        mode: str = "auto",
        dial: float = 1.0,
        max_length: int | None = None,
        steps: Sequence[LayerSteps] = (),
    ) -> "Engine":
        """From a Hugging Face classifier in memory, with gates or without; `steps` come from `calibrate`.

        The rest is as for `load`; gates know the length in training once they were trained or loaded.
        """
        chosen = choose_backend(backend, dtype, device=device, mode=mode, steps=steps)
        # A tokenizer keeps its truncation and padding as state: neither another engine nor the caller may change that
        # in the middle of a call, and a lock would not stop the caller. `load` has one of its own anyway.
        return Engine.on_backend(model, deepcopy(tokenizer), *chosen, dial=dial, max_length=max_length)

    @staticmethod
    def on_backend(
        model: Any,
        tokenizer: Any,
        backend: Backend | Cuda,
        why: str,
        *,
        dial: float = 1.0,
        max_length: int | None = None,
    ) -> "Engine":
        """From a model in memory, on a backend made by the caller; `why` is what describe() gives as the reason."""
        if max_length is None:
            max_length = length_in_training(model)
        kind = model.config.problem_type
        if kind == "multi_label_classification" or (kind == "regression" and model.config.num_labels > 1):
            raise ModelError(f"the engine gives one label or one value per text; problem_type = '{kind}' needs several")
        weights = read_weights(model)
        if hasattr(model.base_model, GATES_NAME) and gates_of(model).mode != "off":
            gates = gates_of(model)
            gates.require_thresholds()
            thresholds, config = gates.thresholds.tolist(), gates.config
        else:
            thresholds, config = [0.0] * weights.shape.layers, PruneConfig()
        packed = _classifier(weights, backend, thresholds=thresholds, config=config, dial=dial)
        names = model.config.id2label
        labels = [str(names[i]) for i in range(model.config.num_labels)] if model.config.num_labels > 1 else []
        return Engine(packed, tokenizer, labels=labels, why=why, max_length=max_length)

    def describe(self) -> dict[str, Any]:
        """Backend, arithmetic and why they were chosen, thresholds, sizes; on a GPU also the mode and its reason."""
        return {**self.packed.describe(), "max_length": self.max_length, "why": self.why}

    def logits(self, encoded: Sequence[EncodedText]) -> Output:
        """Logits and kept counts of tokenized texts, as one packed batch."""
        return self.packed.logits([text.input_ids for text in encoded], [text.token_types for text in encoded])

    def classify(self, items: Sequence[Item], *, progress: bool = False) -> list[Prediction]:
        """Predictions for texts, or for (text, pair) tuples, in their order."""
        return list(self.predict(items, progress=progress))

    def predict(
        self, items: Iterable[Item], *, max_tokens: int | None = None, window: int = 1024, progress: bool = False
    ) -> Iterator[Prediction]:
        """Predictions for a stream of any length, in its order and in bounded memory.

        `window` texts are read at a time, and tokenized while the window before is computed; inside a window, texts of
        similar length share a batch of at most `max_tokens` tokens (4,096 on the CPU and 65,536 on a GPU, if not
        given). A bad text gives a prediction with an error. `progress` shows a bar on standard error.
        """
        if max_tokens is None:
            max_tokens = CPU_TOKENS if isinstance(self.packed, PackedClassifier) else CUDA_TOKENS
        if max_tokens < 1 or window < 1:
            raise ConfigError(f"max_tokens = {max_tokens} and window = {window} must be at least 1")
        if isinstance(items, str):
            raise ConfigError("a single text was given; give a list of texts")
        found = self._stream(iter(items), max_tokens=max_tokens, window=window)
        return with_bar(found, total=len(items) if isinstance(items, Sized) else None) if progress else found

    def _stream(self, stream: Iterator[Item], *, max_tokens: int, window: int) -> Iterator[Prediction]:
        failure: list[Exception] = []

        def read() -> list[Item]:
            """The next window; what was read before a failure still counts."""
            chunk: list[Item] = []
            try:
                if not failure:
                    chunk.extend(islice(stream, window))
            except Exception as error:
                failure.append(error)
            return chunk

        chunk = read()
        # The first window has no other to be prepared beside, and a single text would wait for the thread.
        ready = self._prepare(chunk, max_tokens) if chunk else None
        with ThreadPoolExecutor(max_workers=1) as pool:
            while ready is not None:
                chunk = read()
                pending = pool.submit(self._prepare, chunk, max_tokens) if chunk else None
                yield from self._predict_window(*ready)
                ready = None if pending is None else pending.result()
        if failure:
            raise failure[0]

    def _prepare(self, items: Sequence[Item], max_tokens: int) -> tuple[list[EncodedText], list[Batch]]:
        """A window's texts as tokens, and token-budget batches of similar lengths of those that are good."""
        with self._tokenizing:
            encoded = encode_texts(self.tokenizer, items, self.max_length)
        if self._may_miss:
            encoded = [self._checked(text) for text in encoded]
        lengths = [len(text.input_ids) for text in encoded]
        good = sorted((i for i, text in enumerate(encoded) if not text.error), key=lambda i: -lengths[i])
        batches = _within_budget(good, lengths, max_tokens)
        return encoded, [Batch(numbers, self._ready([encoded[i] for i in numbers])) for numbers in batches]

    def _checked(self, text: EncodedText) -> EncodedText:
        """A text that the embedding tables do not cover gets an error of its own; the batch would have none."""
        if text.error:
            return text
        types = None if text.token_types is None else np.asarray(text.token_types)
        problem = self.packed.tables.problem(np.asarray(text.input_ids), types)
        return EncodedText([], error=problem) if problem else text

    def _ready(self, encoded: Sequence[EncodedText]) -> Callable[[], Output]:
        """The call that computes a batch; for a GPU it is packed here, while the GPU has other work."""
        ids, types = [text.input_ids for text in encoded], [text.token_types for text in encoded]
        if isinstance(self.packed, PackedClassifier):
            return partial(self.packed.logits, ids, types)
        return partial(self.packed.run, self.packed.pack(ids, types))

    def _predict_window(self, encoded: list[EncodedText], batches: list[Batch]) -> list[Prediction]:
        """All of a window's texts, back in order."""
        found = {i: Prediction(error=text.error) for i, text in enumerate(encoded) if text.error}
        for batch in batches:
            predictions = self._predictions([encoded[i] for i in batch.numbers], batch.run())
            found.update(zip(batch.numbers, predictions, strict=True))
        return [found[i] for i in range(len(encoded))]

    def _predictions(self, texts: Sequence[EncodedText], output: Output) -> Iterator[Prediction]:
        """One for each text of a batch. The numbers leave torch together, which is cheaper than one by one."""
        about: list[dict[str, Any]] = [
            {"tokens": len(text.input_ids), "kept": tuple(kept), "truncated": text.truncated}
            for text, kept in zip(texts, output.kept.tolist(), strict=True)
        ]
        finite = output.logits.isfinite().all(dim=-1).tolist()
        best, chosen = (found.tolist() for found in torch.softmax(output.logits, dim=-1).max(dim=-1))
        values = output.logits[:, 0].tolist()
        for row, more in enumerate(about):
            if not finite[row]:  # or it would pass for a prediction
                yield Prediction(error=f"the prediction is not a number in {self.packed.backend.dtype}", **more)
            elif self.labels:
                yield Prediction(label=self.labels[chosen[row]], probability=best[row], **more)
            else:
                yield Prediction(value=values[row], **more)


def _classifier(weights: Weights, backend: Backend | Cuda, **rules: Any) -> "PackedClassifier | CudaClassifier":
    if isinstance(backend, Cuda):
        from thresher.engine.cuda.classifier import CudaClassifier

        return CudaClassifier(weights, backend.dtype, mode=backend.mode, **rules)
    return PackedClassifier(weights, backend, **rules)


def with_bar(found: Iterator[Prediction], *, total: int | None) -> Iterator[Prediction]:
    """The same predictions, counted in a progress bar; it goes away when they end, or when the caller stops early."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("texts", total=total)
        for prediction in found:
            bars.advance(bar)
            yield prediction


def _within_budget(order: list[int], lengths: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Split `order` into batches of at most `max_tokens` tokens; a longer text is a batch of its own."""
    batch: list[int] = []
    used = 0
    for i in order:
        if batch and used + lengths[i] > max_tokens:
            yield batch
            batch, used = [], 0
        batch.append(i)
        used += lengths[i]
    if batch:
        yield batch
