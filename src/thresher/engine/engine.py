"""The engine that users hold: texts in, predictions out, in packed batches that really drop tokens."""

import threading
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from thresher.config import PruneConfig
from thresher.engine.backends.base import Backend
from thresher.engine.choose import choose_backend
from thresher.engine.packed import Output, PackedClassifier
from thresher.engine.steps import read_steps
from thresher.engine.texts import EncodedText, encode_texts
from thresher.engine.weights import LayerSteps, read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import GATES_NAME, gates_of
from thresher.models.checkpoint import MANIFEST, load, load_dense

Item = str | tuple[str, str]


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


class Engine:
    """Classifies texts with a pruned or dense encoder.

    What is dropped from a text never depends on the texts it is batched with, and values only by rounding.
    """

    def __init__(self, packed: PackedClassifier, tokenizer: Any, *, labels: Sequence[str], why: str) -> None:
        self.packed, self.tokenizer, self.labels, self.why = packed, tokenizer, list(labels), why
        self._tokenizing = threading.Lock()  # a tokenizer keeps its truncation as state: one call at a time

    @staticmethod
    def load(
        path: str | Path, *, device: str = "auto", backend: str = "auto", dtype: str = "auto", dial: float = 1.0
    ) -> "Engine":
        """From a folder written by thresher, or any Hugging Face folder with a classification head.

        device: auto, cpu or cuda; backend: auto, cpu or reference; dtype: auto, fp32, bf16, int8 (activations quantized
        as they come) or int8-static (for a folder made by `thresher quantize`). `dial` scales the thresholds: 0 is
        dense, 1 as trained, more is faster.
        """
        folder = Path(path).expanduser()
        if (folder / MANIFEST).is_file():
            steps = read_steps(folder)
            checkpoint = load(path)
            model, tokenizer = checkpoint.model, checkpoint.tokenizer
        else:
            steps = []
            model, tokenizer = load_dense(path, whole=True)
        chosen = choose_backend(backend, dtype, device=device, steps=steps)
        return Engine.on_backend(model, tokenizer, *chosen, dial=dial)

    @staticmethod
    def from_model(
        model: Any,
        tokenizer: Any,
        *,
        device: str = "auto",
        backend: str = "auto",
        dtype: str = "auto",
        dial: float = 1.0,
        steps: Sequence[LayerSteps] = (),
    ) -> "Engine":
        """From a Hugging Face classifier in memory, with gates or without; `steps` come from `calibrate`."""
        chosen = choose_backend(backend, dtype, device=device, steps=steps)
        return Engine.on_backend(model, tokenizer, *chosen, dial=dial)

    @staticmethod
    def on_backend(model: Any, tokenizer: Any, backend: Backend, why: str, *, dial: float = 1.0) -> "Engine":
        """From a model in memory, on a backend made by the caller; `why` is what describe() gives as the reason."""
        kind = model.config.problem_type
        if kind == "multi_label_classification" or (kind == "regression" and model.config.num_labels > 1):
            raise ModelError(f"the engine gives one label or one value per text; problem_type = '{kind}' needs several")
        weights = read_weights(model)
        if hasattr(model.base_model, GATES_NAME) and gates_of(model).mode != "off":
            gates = gates_of(model)
            thresholds, config = gates.thresholds.tolist(), gates.config
        else:
            thresholds, config = [0.0] * weights.shape.layers, PruneConfig()
        packed = PackedClassifier(weights, backend, thresholds=thresholds, config=config, dial=dial)
        names = model.config.id2label
        labels = [str(names[i]) for i in range(model.config.num_labels)] if model.config.num_labels > 1 else []
        return Engine(packed, tokenizer, labels=labels, why=why)

    def describe(self) -> dict[str, Any]:
        """Backend, arithmetic and why they were chosen, thresholds, sizes."""
        return {**self.packed.describe(), "why": self.why}

    def logits(self, encoded: Sequence[EncodedText]) -> Output:
        """Logits and kept counts of tokenized texts, as one packed batch."""
        return self.packed.logits([text.input_ids for text in encoded], [text.token_types for text in encoded])

    def classify(self, items: Sequence[Item], *, progress: bool = False) -> list[Prediction]:
        """Predictions for texts, or for (text, pair) tuples, in their order."""
        return list(self.predict(items, progress=progress))

    def predict(
        self, items: Iterable[Item], *, max_tokens: int = 4096, window: int = 1024, progress: bool = False
    ) -> Iterator[Prediction]:
        """Predictions for a stream of any length, in its order and in bounded memory.

        `window` texts are read at a time, and tokenized while the window before is computed; inside a window, texts of
        similar length share a batch of at most `max_tokens` tokens. A bad text gives a prediction with an error.
        `progress` shows a bar on standard error.
        """
        if max_tokens < 1 or window < 1:
            raise ConfigError(f"max_tokens = {max_tokens} and window = {window} must be at least 1")
        if isinstance(items, str):
            raise ConfigError("a single text was given; give a list of texts")
        found = self._stream(iter(items), max_tokens=max_tokens, window=window)
        return with_bar(found, total=len(items) if isinstance(items, Sized) else None) if progress else found

    def _stream(self, stream: Iterator[Item], *, max_tokens: int, window: int) -> Iterator[Prediction]:
        with ThreadPoolExecutor(max_workers=1) as pool:
            failure: list[Exception] = []

            def tokenize_next() -> "Future[list[EncodedText]] | None":
                """Read a window and tokenize it in the background; what was read before a failure still counts."""
                chunk: list[Item] = []
                try:
                    chunk.extend(islice(stream, window))
                except Exception as error:
                    failure.append(error)
                return pool.submit(self._encode, chunk) if chunk else None

            pending = tokenize_next()
            while pending is not None:
                encoded = pending.result()
                pending = tokenize_next()
                yield from self._predict_window(encoded, max_tokens)
            if failure:
                raise failure[0]

    def _encode(self, items: Sequence[Item]) -> list[EncodedText]:
        with self._tokenizing:
            return encode_texts(self.tokenizer, items, self.packed.positions)

    def _predict_window(self, encoded: list[EncodedText], max_tokens: int) -> list[Prediction]:
        """All of a window's texts, in token-budget batches of similar lengths, back in order."""
        found: dict[int, Prediction] = {i: Prediction(error=text.error) for i, text in enumerate(encoded) if text.error}
        good = sorted((i for i in range(len(encoded)) if i not in found), key=lambda i: -len(encoded[i].input_ids))
        for batch in _within_budget(good, [len(text.input_ids) for text in encoded], max_tokens):
            output = self.logits([encoded[i] for i in batch])
            for i, logits, kept in zip(batch, output.logits, output.kept.tolist(), strict=True):
                found[i] = self._prediction(encoded[i], logits, kept)
        return [found[i] for i in range(len(encoded))]

    def _prediction(self, text: EncodedText, logits: torch.Tensor, kept: list[int]) -> Prediction:
        about: dict[str, Any] = {"tokens": len(text.input_ids), "kept": tuple(kept), "truncated": text.truncated}
        if not self.labels:
            return Prediction(value=float(logits[0]), **about)
        probabilities = torch.softmax(logits, dim=-1)
        best = int(probabilities.argmax())
        return Prediction(label=self.labels[best], probability=float(probabilities[best]), **about)


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
