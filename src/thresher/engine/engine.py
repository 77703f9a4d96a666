"""The engine that users hold: texts in, answers out, in packed batches that really drop tokens."""

import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from thresher.core.heads import Head
from thresher.engine.answers import Answers
from thresher.engine.bar import with_bar
from thresher.engine.checks import (
    check_dimensions,
    check_ids,
    check_items,
    check_max_length,
    check_max_tokens,
    check_prompt,
    check_query,
    check_scores,
    check_sizes,
    check_top_k,
    check_window,
    other_head,
)
from thresher.engine.choose import Choice, choose
from thresher.engine.cores import set_threads
from thresher.engine.executor import Executor, made_up_texts
from thresher.engine.forks import check_process, expect_forks
from thresher.engine.inputs import tokens_of_ids
from thresher.engine.predictions import Outputs, Prediction, Ranked, cut_vectors
from thresher.engine.reads_tokens import ReadsTokens
from thresher.engine.scales import read_scales
from thresher.engine.stream import Group, TextStream
from thresher.engine.tokenizing import Tokenizing
from thresher.engine.weights import LayerScales, read_weights
from thresher.engine.windows import Item, batches_of, count_of
from thresher.errors import ConfigError, DataError
from thresher.models.attach import known_of, length_in_training
from thresher.models.checkpoint import load, load_dense
from thresher.models.defaults import declared, longest_read, positions_of
from thresher.models.heads import head_of
from thresher.models.manifest import is_run
from thresher.models.pairs import takes_pairs
from thresher.models.plan import check_dial, plan_of
from thresher.text import is_blank
from thresher.tokenizing.tokens import Tokens
from thresher.tokenizing.windows import WINDOW
from thresher.workplace import expanded

# Names that sentence-transformers knows in every model: those without such prompts read the text alone.
USUAL_PROMPTS = {"query": "", "document": ""}
MANY_TEXTS = 16_384  # from here on it pays to start processes that tokenize, where there may be some


class Engine(ReadsTokens):
    """A pruned or dense encoder with its head: classifies, scores, ranks or embeds texts, answers questions or tags.

    A text's result does not depend on the texts it is batched with, but for rounding: products of other shapes add up
    in another order. Texts of more than `max_length` tokens are truncated; of a reranker's pairs, the documents.

    On the CPU it also works in processes that are forked once it is loaded, with one thread in each.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Any,
        *,
        labels: Sequence[str],
        why: str,
        head: Head | None = None,
        max_length: int | None = None,
        pairs: bool | None = None,
        workers: int | None = None,
    ) -> None:
        """`pairs`: whether the model is for pairs of texts, where that is known; the other kind is refused. `workers`:
        how many processes tokenize, as for `load`."""
        max_length = check_max_length(max_length)
        expect_forks()
        self._process = os.getpid()
        self.executor, self.tokenizer, self.labels, self.why = executor, tokenizer, list(labels), why
        self.head = head or Head(means="classes" if labels else "value")
        self.max_length = min(max_length or executor.tables.positions, executor.tables.positions)
        cuts = "only_second" if self.head.means == "score" else "longest_first"
        options: Any = {"limit": self.max_length, "cuts": cuts, "pairs": pairs, "workers": workers}
        tokenizing = Tokenizing(tokenizer, on_cores=executor.on_cores, **options)
        self._stream = TextStream(executor, tokenizing, head=self.head, names=self.labels)

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
        threads: int | None = None,
        workers: int | None = None,
        steady: bool = False,
        means: str | None = None,
    ) -> "Engine":
        """From a folder written by thresher, or any Hugging Face or sentence-transformers folder with a head we know.

        device: auto (a GPU that the kernels can run on, otherwise the CPU), cpu or cuda; backend: auto, cpu, cuda, onnx
        (onnxruntime on the CPU, in fp32 or int8-static: for texts that come one by one) or reference; dtype: auto,
        fp32, bf16, on a GPU also fp16, on the CPU also int8 (activations quantized as they come); for a folder made by
        `thresher quantize` int8-static on the CPU, and fp8 on GPUs of compute capability 8.9 or newer. mode, on a GPU:
        auto, sync (library products on the live tokens) or graph (CUDA graphs). `dial` scales the thresholds: 0 is
        dense, 1 as trained, more is faster; layers that leave only protected tokens do so at any dial above 0.
        `max_length` in tokens: as in training if not given, or else what the model can take. `threads`: with how many
        torch computes on the CPU, in this whole process; if not given, as many as it has. `workers`: how many processes
        tokenize; 0: threads of this one; if not given, as many as pay, which describe() says. `steady`, for servers: on
        a GPU batches have few sizes, for which `warm_up` prepares, and others are computed without a CUDA graph rather
        than wait for one. `means="score"`: the model's one output is a reranker's score, where its folder does not say
        so.
        """
        if is_run(path):
            scales = read_scales(Path(expanded(path)), dtype)
            checkpoint = load(path)
            model, tokenizer, pairs = checkpoint.model, checkpoint.tokenizer, takes_pairs(checkpoint.manifest)
        else:
            scales, pairs = [], None
            model, tokenizer = load_dense(path, whole=True)
        set_threads(threads)
        choice = replace(choose(backend, dtype, device=device, mode=mode, scales=scales), steady=steady)
        options: Any = {"dial": dial, "max_length": max_length, "pairs": pairs, "workers": workers, "means": means}
        return Engine.on(choice, model, tokenizer, **options)

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
        scales: Sequence[LayerScales] = (),
        threads: int | None = None,
        workers: int | None = None,
        means: str | None = None,
    ) -> "Engine":
        """From a model in memory, with gates or without; `scales` come from `find_scales`.

        The rest is as for `load`; gates know the length in training once they were trained or loaded.
        """
        set_threads(threads)
        choice = choose(backend, dtype, device=device, mode=mode, scales=scales)
        # A tokenizer keeps its truncation and padding as state: neither another engine nor the caller may change that
        # in the middle of a call, and a lock would not stop the caller. `load` has one of its own anyway.
        options: Any = {"dial": dial, "max_length": max_length, "workers": workers, "means": means}
        return Engine.on(choice, model, deepcopy(tokenizer), **options)

    @staticmethod
    def on(
        choice: Choice,
        model: Any,
        tokenizer: Any,
        *,
        dial: float = 1.0,
        max_length: int | None = None,
        pairs: bool | None = None,
        workers: int | None = None,
        means: str | None = None,
    ) -> "Engine":
        """From a model in memory, on what was chosen for it. `pairs` as in `Engine`; else by what the gates know."""
        head, names = declared(head_of(model), means), model.config.id2label
        if max_length is None:
            max_length = longest_read(model, tokenizer, length_in_training(model), head)
        if max_length is None and head.means == "span":
            max_length = WINDOW
        if max_length is None:
            max_length = positions_of(model, None)
        named = head.means in ("classes", "labels", "tags")
        labels = [str(names[i]) for i in range(model.config.num_labels)] if named else []
        pairs = takes_pairs(known_of(model)) if pairs is None else pairs
        pairs = {"score": True, "span": True, "embedding": False, "tags": False}.get(head.means, pairs)
        executor = choice.build(read_weights(model), plan_of(model, dial=dial))
        about: Any = {"labels": labels, "why": choice.why, "head": head, "max_length": max_length, "pairs": pairs}
        return Engine(executor, tokenizer, **about, workers=workers)

    @property
    def tokenizing(self) -> Tokenizing:
        """How texts are read, and to what length."""
        return self._stream.tokenizing

    def describe(self) -> dict[str, Any]:
        """Backend, arithmetic and why they were chosen, thresholds, sizes; on a GPU also the mode and its reason."""
        about = {"head": self.head.means, "max_length": self.max_length, "why": self.why}
        return {**self.executor.describe(), **about, **self._stream.tokenizing.describe()}

    def classify(self, items: Sequence[Item], *, progress: bool = False) -> list[Prediction]:
        """Predictions for texts, or for (text, pair) tuples, in their order."""
        return list(self.predict(items, progress=progress))

    def predict(
        self,
        items: Iterable[Item],
        *,
        max_tokens: int | None = None,
        window: int | None = None,
        read_ahead: bool = False,
        progress: bool = False,
    ) -> Iterator[Prediction]:
        """Predictions for a stream of any length, in its order and in bounded memory.

        A list is read ahead: texts are tokenized while others are computed. Of a generator, `window` texts are read
        (1,024 on the CPU and 16,384 on a GPU, if not given) and answered before the next is asked for: with window=1 a
        live stream is answered at once. `read_ahead` treats it like a list. Batches have at most `max_tokens` tokens
        (if not given 4,096 on a CPU, 1,024 a core where it has more than four, and 32,768 on a GPU). A text that is
        bad, or that cannot be computed, gives a prediction with an error. `progress` shows a bar on standard error.
        """
        if self.head.means == "embedding":
            raise other_head(self.head.means, "predict")
        parts = self.stream_arrays(items, max_tokens=max_tokens, window=window, read_ahead=read_ahead)
        found = (prediction for part in parts for prediction in part)
        return with_bar(found, total=count_of(items)) if progress else found

    def predict_arrays(
        self, items: Sequence[Item], *, max_tokens: int | None = None, progress: bool = False
    ) -> Answers:
        """All results at once as arrays, without an object for each text: labels, probabilities, values, kept, tokens,
        truncated, errors; and outputs, which are an embedder's vectors, of texts with the model's default prompt."""
        return self._arrays(self.prompted(items), max_tokens=max_tokens, progress=progress)

    def _arrays(self, items: Sequence[Item], *, max_tokens: int | None = None, progress: bool) -> Answers:
        computed = self._compute(items, max_tokens=max_tokens)
        parts = list(with_bar(computed, total=count_of(items), of=len) if progress else computed)
        return Answers.joined(parts) if parts else self._stream.nothing()

    def stream_arrays(
        self,
        items: Iterable[Item],
        *,
        max_tokens: int | None = None,
        window: int | None = None,
        read_ahead: bool = False,
    ) -> Iterator[Answers]:
        """The same for a stream, in parts that follow each other; the rest is as for `predict`."""
        return self._compute(self.prompted(items), max_tokens=max_tokens, window=window, read_ahead=read_ahead)

    def warm_up(self, items: Sequence[Item] = (), *, sizes: Sequence[tuple[int, int]] = ()) -> None:
        """Prepare for a workload, so that its first texts do not wait: `items` are texts like those that will come, as
        many as come together; `sizes` are (texts, tokens of each) of batches. On a GPU this compiles kernels and
        captures graphs; tokenizing processes, where there are any, are started."""
        check_process(self._process, self.executor.device)
        self._stream.tokenizing.start(wait=True)
        if self.head.reads == "tokens":
            tokens = self.window_tokens(list(check_items(items)))
        else:
            tokens = self._stream.tokens(list(self.prompted(items)))
        numbers = batches_of(tokens, self.executor.token_budget, by_length=self.executor.by_length)
        made_up = made_up_texts(self.executor, check_sizes(sizes))
        self.executor.warm_up([*(tokens.take(each) for each in numbers), *made_up])

    def read(self, items: Sequence[Item], *, prompt: str | None = None, prompt_name: str | None = None) -> Tokens:
        """What texts are to the model, an embedder's behind their prompt. With `begin` and `finish` the steps of
        `predict`, for whoever makes batches of many callers' texts; any thread may read."""
        check_process(self._process, self.executor.device)
        return self._stream.tokens(list(self.prompted(items, prompt, prompt_name)))

    def read_ids(self, rows: Sequence[Sequence[int]]) -> Tokens:
        """The same for texts that are tokenized already, with their special tokens; what is too long is cut at its
        end."""
        return tokens_of_ids(check_ids(rows), limit=self.max_length, words=self.executor.tables.words)

    def begin(self, tokens: Tokens) -> Group:
        """Launch what was read. On a GPU it computes from now on, and others may be launched meanwhile."""
        return self._stream.begin(tokens, self.executor.token_budget)

    def finish(self, begun: Group) -> Answers:
        """The answers of what was launched; of a head that reads every token, `finish_tokens` has them."""
        return self._stream.finish(begun)

    def at_dial(self, dial: float) -> "Engine":
        """The same weights and tokenizer at another dial. A ModelError where weights were converted for layers that
        leave first tokens alone, and dial 0 has none of these, or dial 0 left no thresholds: `load` it again then."""
        other = copy(self)
        plan = self.executor.plan.at_dial(check_dial(dial))
        other.executor = self.executor.with_plan(plan)
        other._stream = TextStream(other.executor, self._stream.tokenizing, head=self.head, names=self.labels)
        return other

    def score(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False, progress: bool = False) -> Outputs:
        """How well each document answers its query, (pairs,) float32: between 0 and 1, as in sentence-transformers, or
        as the model's folder has it; or `raw` logits.

        A pair may be a list or an array's row, as it may there. Documents that are too long are cut; `predict` gives
        the same scores and says of which. A pair that cannot be scored is a DataError that names it.
        """
        check_scores(self.head.means, "score")
        given = check_items(pairs, name="pairs")
        pairs = [tuple(pair) if isinstance(pair, list | np.ndarray) else pair for pair in given]
        return self._scored(pairs, raw=raw, progress=progress)[0]

    def _scored(self, pairs: Sequence[tuple[str, str]], *, raw: bool, progress: bool = False) -> tuple[Outputs, Any]:
        """Scores, and which documents were cut: (pairs,) each."""
        answers = self._good(pairs, progress=progress)
        return answers.outputs[:, 0] if raw else answers.values, answers.truncated

    def rank(
        self, query: str, documents: Sequence[str], *, top_k: int | None = None, raw: bool = False
    ) -> list[Ranked]:
        """The documents by falling score for one query, the first `top_k` of them if given; ties stay in order."""
        check_scores(self.head.means, "rank")
        top_k = check_top_k(top_k)
        documents = check_items(documents, name="documents")
        query = check_query(query)
        scores, cut = self._scored([(query, document) for document in documents], raw=raw)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(i), float(scores[i]), truncated=bool(cut[i])) for i in order]

    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        progress: bool = False,
    ) -> Outputs:
        """One vector for each text: (texts, width) float32.

        `prompt` stands before every text; or `prompt_name`, one of the model's own; or the model's default, if any.
        `dimensions`: vectors of a Matryoshka model cut to so many numbers, and of length 1 again where the model makes
        them so. Texts that are too long are cut; `predict_arrays` gives the same vectors and says of which. A text that
        cannot be embedded is a DataError that names it.
        """
        if self.head.means != "embedding":
            raise other_head(self.head.means, "embed")
        check_dimensions(dimensions, self._stream.width)
        answers = self._good(self.prompted(texts, prompt, prompt_name), progress=progress)
        return cut_vectors(self.head, answers.outputs, dimensions)

    def prompted(self, items: Any, prompt: str | None = None, name: str | None = None) -> Any:
        """An embedder's texts behind their prompt; a list stays one, and a stream is not read ahead."""
        before = self._prompt(prompt, name) if self.head.means == "embedding" else ""
        items = check_items(items)
        if not before:
            return items
        # What is no text, or has nothing to read, stays as it is: a prompt would hide that.
        found = (before + text if isinstance(text, str) and not is_blank(text) else text for text in items)
        return found if count_of(items) is None else list(found)

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None:
            return check_prompt(prompt)
        name = self.head.default_prompt if name is None else name
        prompts = {**USUAL_PROMPTS, **self.head.prompts}
        if name is not None and name not in tuple(prompts):
            raise ConfigError(f"prompt_name = {name!r} is not one of the model's prompts: {', '.join(prompts)}")
        return "" if name is None else prompts[name]

    def _good(self, items: Sequence[Item], *, progress: bool) -> Answers:
        """Answers to all items, every one of them good."""
        answers = self._arrays(items, progress=progress)
        if answers.problems:
            number = min(answers.problems)
            raise DataError(f"item {number}: {answers.problems[number]}")
        return answers

    def _compute(
        self,
        items: Iterable[Item],
        *,
        max_tokens: int | None = None,
        window: int | None = None,
        read_ahead: bool = False,
    ) -> Iterator[Answers]:
        if self.head.reads == "tokens":
            raise other_head(self.head.means, "predict")
        check_process(self._process, self.executor.device)
        max_tokens = self.executor.token_budget if max_tokens is None else check_max_tokens(max_tokens)
        window = self.executor.window if window is None else check_window(window)
        if read_ahead or (count_of(items) or 0) >= MANY_TEXTS:
            self._stream.tokenizing.start()
        return self._stream(check_items(items), max_tokens=max_tokens, window=window, ahead=read_ahead)
