"""`accelerate_` and `unaccelerate_`: a stock SentenceTransformer or CrossEncoder computes without padding, or pruned.

Tokenizing, prompts, batches, activation, normalisation and everything else stay the library's; only the transformer
module's forward is another, and that of the pooling, which finds its vectors ready. Modules, weights and files stay.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.core.heads import Head
from thresher.engine.choose import choose
from thresher.engine.executor import Executor
from thresher.engine.scales import read_scales
from thresher.engine.weights import read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.checkpoint import load, read_manifest
from thresher.models.embedder import Embedder
from thresher.models.heads import head_of
from thresher.models.plan import plan_of
from thresher.models.stored import READS
from thresher.tokenizing.tokens import Tokens, starts_of

NAME = "_thresher"  # on a transformer module: what computes for it
SAME = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp32"}
# What a text's tokens come with; anything else would change the result, and is refused.
INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
BOOKKEEPING = {"modality", "task", "prompt_length", "return_dict", "special_tokens_mask", "offset_mapping"}


def accelerate_(
    model: Any, run: str | Path | None = None, *, device: str = "auto", dtype: str = "same", dial: float = 1.0
) -> None:
    """Let a sentence-transformers model in memory compute in packed batches, in place; `unaccelerate_` undoes it.

    run: a folder written by thresher for this very model, which then prunes, with the run's weights; without one it is
    dense, and gives the same results. device: auto (where the model is), cpu or cuda; dtype: same (as the model's
    weights, but fp32 for float64, and for float16 on a CPU; results have the weights' dtype), auto (the fastest here),
    or as for `Engine.load`. `dial` scales the run's thresholds. Weights are copied: what happens to the model's own
    later is not seen.
    """
    transformer, pooling = _modules(model)
    if NAME in vars(transformer):
        raise ModelError("the model is accelerated already; call thresher.unaccelerate_(model) first")
    own = _own_model(transformer, pooling)
    scales = [] if run is None else read_scales(Path(run).expanduser(), dtype)
    if device == "auto":
        device = "cuda" if transformer.model.device.type == "cuda" else "cpu"
    gives = torch.float32
    if dtype == "same":
        gives = transformer.model.dtype  # whoever has half precision wants arrays of half the size
        dtype = _same(gives, device)
    choice = choose("auto", dtype, device=device, scales=scales)
    chosen = own if run is None else _fitting(run, own, transformer.tokenizer)
    weights = read_weights(chosen)
    # The library scales and cuts vectors itself, where it is told to.
    weights = replace(weights, head=replace(weights.head, normalised=False, cut_to=None))
    computing = Packed(choice.build(weights, plan_of(chosen, dial=dial)), choice.why, run=run, gives=gives)
    setattr(transformer, NAME, computing)
    transformer.forward = _Forward(computing, transformer)
    if pooling is not None:
        pooling.forward = _Pooling(pooling, mode=pooling.pooling_mode)


def unaccelerate_(model: Any) -> None:
    """Give the model its stock computation back, in place."""
    transformer, pooling = _modules(model)
    if NAME not in vars(transformer):
        raise ModelError("the model is not accelerated; thresher.accelerate_(model) does that")
    for module in (transformer, pooling):
        if module is not None:
            del module.forward
    delattr(transformer, NAME)


def acceleration_of(model: Any) -> dict[str, Any]:
    """What computes for an accelerated model, and why: backend, device, arithmetic, thresholds, run."""
    transformer, _ = _modules(model)
    computing = vars(transformer).get(NAME)
    if computing is None:
        raise ModelError("the model is not accelerated; thresher.accelerate_(model) does that")
    return {**computing.executor.describe(), "why": computing.why, "run": computing.run}


class Packed:
    """Padded batches in, outputs out: padding is left behind on the way to an executor, which runs one at a time."""

    def __init__(self, executor: Executor, why: str, *, run: str | Path | None, gives: torch.dtype) -> None:
        self.executor, self.why, self.run, self.gives = executor, why, None if run is None else str(run), gives
        self._running = threading.Lock()

    def __reduce__(self) -> Any:
        raise ModelError(
            "an accelerated model can neither be copied nor sent to another process; call "
            "thresher.unaccelerate_(model) first"
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it without types
    def __call__(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Tensor:
        """(texts, outputs) in the dtype that it `gives`, where the ids are.

        input_ids, attention_mask, token_type_ids: (texts, tokens).
        """
        lengths = _lengths(input_ids, attention_mask)
        tokens = _tokens(input_ids, token_type_ids, lengths)
        found = []
        for part in _within(self.executor.token_budget, lengths):
            packed = self.executor.pack(tokens.between(part.start, part.stop))
            with self._running:
                found.append(self.executor.run(packed).outputs)
        return torch.cat(found).to(input_ids.device, self.gives)


@dataclass
class _Forward:
    """The forward of a transformer module: features in, features out, as the library has them."""

    computing: Packed
    transformer: Any

    def __call__(self, features: dict[str, Any], **more: Any) -> dict[str, Any]:
        if self.transformer.training and torch.is_grad_enabled():
            raise ModelError("an accelerated model does not train; call thresher.unaccelerate_(model) first")
        given = {**features, **more}
        modality = given.get("modality", "text")
        if modality != "text" or not isinstance(given.get("input_ids"), Tensor):
            raise ModelError(f"an accelerated model reads text, not {modality!r}; call thresher.unaccelerate_(model)")
        foreign = sorted(
            key for key in set(given) - INPUTS - BOOKKEEPING if given[key] is not None and given[key] is not False
        )
        if foreign:
            raise ModelError(
                f"an accelerated model takes no {foreign[0]}; leave it out, or call thresher.unaccelerate_(model) first"
            )
        outputs: Tensor = self.computing(given["input_ids"], given.get("attention_mask"), given.get("token_type_ids"))
        name = self.transformer.module_output_name
        features[name] = ReadyVectors.of(outputs) if name == "token_embeddings" else outputs
        return features


class ReadyVectors(Tensor):
    """Stands for the states of all tokens where only `vectors` (texts, width) were made of them. A tensor, so that
    whoever looks for tensors finds it, and refuses whatever is done with one, or asked of it."""

    vectors: Tensor

    @staticmethod
    def of(vectors: Tensor) -> "ReadyVectors":
        found = Tensor._make_subclass(ReadyVectors, torch.empty(0))
        found.vectors = vectors
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ModelError(
            "an accelerated model gives no token_embeddings: they are pooled as they are made; call "
            "thresher.unaccelerate_(model) first"
        )


@dataclass
class _Pooling:
    """The forward of a pooling whose vectors are ready."""

    pooling: Any
    mode: str

    def __call__(self, features: dict[str, Any], **more: Any) -> dict[str, Any]:
        if self.pooling.pooling_mode != self.mode:
            raise ModelError(
                f"the model pools by {self.pooling.pooling_mode!r} now, and was accelerated for {self.mode!r}; call "
                "thresher.unaccelerate_(model), and accelerate_ again"
            )
        if not self.pooling.include_prompt and features.get("prompt_length"):
            raise ModelError(
                "an accelerated model pools prompts, too, and this one leaves them out (include_prompt = False); call "
                "thresher.unaccelerate_(model) first"
            )
        features["sentence_embedding"] = features["token_embeddings"].vectors
        return features


def _modules(model: Any) -> tuple[Any, Any | None]:
    """The transformer module, and the pooling of a SentenceTransformer."""
    try:
        from sentence_transformers import CrossEncoder, SentenceTransformer
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling
    except ImportError as error:
        raise ModelError(
            "accelerate_ is for models of sentence-transformers from version 6 on; pip install 'thresher[st]'"
        ) from error
    if not isinstance(model, CrossEncoder | SentenceTransformer):
        raise ModelError(f"accelerate_ takes a SentenceTransformer or a CrossEncoder, not a {type(model).__name__}")
    names = [type(module).__name__ for module in model]
    wanted = (Transformer,) if isinstance(model, CrossEncoder) else (Transformer, Pooling)
    if len(names) < len(wanted) or any(type(module) is not kind for module, kind in zip(model, wanted, strict=False)):
        kinds = " and ".join(kind.__name__ for kind in wanted)
        raise ModelError(f"the model is made of {', '.join(names)}; accelerate_ needs {kinds} first")
    if isinstance(model, CrossEncoder) and len(names) > 1:
        raise ModelError(
            f"the model is made of {', '.join(names)}; accelerate_ takes a CrossEncoder of one Transformer"
        )
    return model[0], None if isinstance(model, CrossEncoder) else model[1]


def _own_model(transformer: Any, pooling: Any | None) -> Any:
    """The model in memory as thresher knows it: a classifier, or an embedder around the same encoder."""
    if transformer.backend != "torch":
        raise ModelError(f"the model has the backend '{transformer.backend}'; load it with backend='torch'")
    if "forward" in vars(transformer) or "forward" in vars(transformer.model):
        raise ModelError("another library has replaced the model's forward (a device_map does); load it without that")
    if transformer.can_flatten_inputs:
        raise ModelError("the model leaves padding out by flash attention; load it with attn_implementation='sdpa'")
    if pooling is None:
        head_of(transformer.model)
        return transformer.model
    mode = pooling.pooling_mode
    if mode not in READS:
        mode = mode if isinstance(mode, str) else " and ".join(mode)
        raise ModelError(f"the model pools by {mode}, which is not supported yet; supported: {' or '.join(READS)}")
    return Embedder(transformer.model, Head(reads=READS[mode], means="embedding"))


def _fitting(run: str | Path, own: Any, tokenizer: Any) -> Any:
    """The run's model, after checking that it stands for the one in memory."""
    folder = Path(run).expanduser()
    manifest, here = read_manifest(folder), own.config
    _compare("model_type", manifest["model_type"], here.model_type, run=run)
    _compare("the number of layers", manifest["layers"], here.num_hidden_layers, run=run)
    checkpoint = load(folder)
    there = checkpoint.model.config
    for name in ("hidden_size", "vocab_size"):
        _compare(name, getattr(there, name), getattr(here, name), run=run)
    found, wanted = head_of(checkpoint.model), head_of(own)
    _compare("what the head reads", found.reads, wanted.reads, run=run)
    if "embedding" in (found.means, wanted.means):
        _compare("what its outputs mean", found.means, wanted.means, run=run)
    else:
        _compare("num_labels", there.num_labels, here.num_labels, run=run)
    if checkpoint.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ModelError(f"{run} has another vocabulary than the model; give a run that was made from this model")
    return checkpoint.model


def _compare(name: str, there: Any, here: Any, *, run: str | Path) -> None:
    if there != here:
        raise ModelError(
            f"{run} does not fit the model: {name} is {there} there and {here} here; give a run that was made from "
            "this model"
        )


def _same(dtype: torch.dtype, device: str) -> str:
    name = SAME.get(dtype)
    if name is None:
        raise ConfigError(f"the model's weights are {dtype}; say which arithmetic to use, for example dtype='auto'")
    return "fp32" if name == "fp16" and device != "cuda" else name


def _lengths(input_ids: Tensor, attention_mask: Tensor | None) -> list[int]:
    """Tokens of every text; padding elsewhere than at the end would move positions."""
    if attention_mask is None:
        return [input_ids.shape[1]] * len(input_ids)
    mask = attention_mask.bool()
    lengths = mask.sum(dim=1)
    if not torch.equal(mask.cumprod(dim=1).sum(dim=1), lengths):
        raise ModelError("an accelerated model needs padding at the end; set tokenizer.padding_side = 'right'")
    found: list[int] = lengths.tolist()
    return found


def _tokens(input_ids: Tensor, token_type_ids: Tensor | None, lengths: Sequence[int]) -> Tokens:
    """(texts, tokens) with padding at the end -> the texts end to end."""
    counts = np.asarray(lengths, np.int64)
    alive = np.arange(input_ids.shape[1]) < counts[:, None]
    ids, types = (
        None if given is None else given.cpu().numpy()[alive].astype(np.int32) for given in (input_ids, token_type_ids)
    )
    assert ids is not None  # there is always one
    return Tokens(ids, types, starts_of(counts), np.zeros(len(counts), np.bool_))


def _within(budget: int, lengths: Sequence[int]) -> Iterator[slice]:
    """Neighbouring texts of at most `budget` tokens together; a longer one alone."""
    start = used = 0
    for index, length in enumerate(lengths):
        if index > start and used + length > budget:
            yield slice(start, index)
            start, used = index, 0
        used += length
    yield slice(start, len(lengths))
