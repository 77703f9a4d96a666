"""Tiny random models of every supported family, and ragged inputs for them."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

import thresher
from thresher.config import PruneConfig
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.models.heads import auto_class, outputs_in

BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "mpnet")
NEWER = ("nomic_bert", "gte", "modernbert", "deberta-v2", "roberta-prelayernorm")
FAMILIES = (*BERT_LIKE, *NEWER)
WITHOUT_SPANS = ("nomic_bert", "gte")  # families whose stock code has no model for question answering
LAYERS, WIDTH, FFN_WIDTH, HEADS, VOCABULARY, POSITIONS, LABELS = 4, 32, 48, 4, 60, 64, 3
SEPARATOR = 5
BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
LENGTHS = (11, 1, 7, 3, 16)
# Thresholds that drop some tokens of a random model in every layer and leave some in all but the last.
SOME = (0.7, 0.8, 0.9, 1.0)

Inputs = dict[str, Tensor]


def in_pairs(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """For `parametrize`: of two axes every pair, whichever two, but not of all axes everything with everything: what is
    wrong where a third thing has just this value is rare, and to look for it takes the last axis' length as long."""
    *free, last = axes
    places = product(*(range(len(axis)) for axis in free))
    return [(*(axis[i] for axis, i in zip(free, at, strict=True)), last[sum(at) % len(last)]) for at in places]


def tiny_config(name: str, *, dropout: float = 0.0, **changes: Any) -> Any:
    """Four layers, width 32, four heads; ELECTRA and ALBERT embed narrower and project."""
    if name == "distilbert":
        sizes: dict[str, Any] = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": FFN_WIDTH}
        sizes |= {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": dropout}
    else:
        sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        sizes |= {"intermediate_size": FFN_WIDTH, "classifier_dropout_prob": dropout, "classifier_dropout": dropout}
        sizes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if name in ("electra", "albert"):
        sizes["embedding_size"] = 16
    if name == "deberta-v2":  # as v3: few buckets, so that far tokens share one, and no table of positions
        sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
        sizes |= {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False}
        sizes |= {"max_relative_positions": 16, "cls_dropout": dropout, "pooler_dropout": dropout}
    if name == "gte":
        sizes["type_vocab_size"] = 2
    if name == "modernbert":  # windows of five tokens: layer 0 and 3 are global
        sizes |= {"local_attention": 5, "attention_dropout": dropout, "mlp_dropout": dropout, **BIASES}
        sizes |= {"embedding_dropout": dropout, "pad_token_id": 0, "cls_token_id": 1, "bos_token_id": 1}
        sizes |= {"sep_token_id": 2, "eos_token_id": 2}
    sizes |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "num_labels": LABELS} | changes
    return AutoConfig.for_model(name, **sizes)


def tiny_model(
    name: str, *, seed: int = 0, attention: str | None = None, means: str = "classes", **changes: Any
) -> Any:
    """A model in float64 whose attention is far from uniform and whose norms and biases all differ: a sequence
    classifier, or one whose head means something else."""
    config = tiny_config(name, **changes)
    if means == "span":
        config.num_labels = 2
    model = auto_class(means).from_config(config, attn_implementation=attention)
    randomize_(model, seed)
    return model.double().eval()


@torch.no_grad()
def randomize_(model: nn.Module, seed: int) -> None:
    """Every number is drawn, so that a swapped bias, norm or projection cannot hide behind zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.copy_(noise * 0.2 + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))
        elif "embedding" in name or "relative_attention_bias" in name:
            parameter.copy_(noise)
        else:
            sharp = 3.0 if "query_proj" in name else 1.2  # DeBERTa divides logits by more
            parameter.copy_(noise * sharp / math.sqrt(parameter.shape[1]))


def wide_windows(name: str, score_queries: int) -> dict[str, Any]:
    """Changes of a configuration with which every token of a whole text is seen by a query that counts."""
    changes: dict[str, Any] = {"max_position_embeddings": 1024}
    if name == "modernbert" and score_queries != 1:
        changes |= {"local_attention": 128} if score_queries else {"layer_types": ["full_attention"] * LAYERS}
    return changes


def ragged(model: nn.Module, lengths: Sequence[int] = LENGTHS, *, extra: int = 0, seed: int = 0) -> Inputs:
    """Random right-padded sequences. A sequence depends on its place in `lengths` and on nothing else.

    The ids 0 to 9 are left to special tokens, so a separator is there only where a test puts one.
    """
    pad: int = model.config.pad_token_id  # type: ignore[assignment, union-attr]
    input_ids = torch.full((len(lengths), max(lengths) + extra), pad)
    for row, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * seed + row)
        input_ids[row, :length] = torch.randint(10, VOCABULARY, (length,), generator=generator)
    mask = torch.arange(input_ids.shape[1])[None] < torch.tensor(lengths)[:, None]
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def exact_attention(name: str) -> str:
    """The stock attention that computes in float64 what is given in float64: ModernBERT's eager one does not."""
    return "sdpa" if name == "modernbert" else "eager"


def stock_precision(name: str) -> float:
    """How exact the stock code is in float64: ModernBERT rotates in float32."""
    return 3e-6 if name == "modernbert" else 1e-10


def one(inputs: Inputs, row: int) -> Inputs:
    """One sequence without its padding."""
    length = int(inputs["attention_mask"][row].sum())
    return {name: value[row : row + 1, :length] for name, value in inputs.items()}


def pruned_model(
    name: str,
    thresholds: Sequence[float] = SOME,
    *,
    seed: int = 0,
    attention: str | None = None,
    changes: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A tiny model with gates in hard mode. `settings` are PruneConfig's, `changes` the model configuration's."""
    model = tiny_model(name, seed=seed, attention=attention, **(changes or {}))
    prune_with_(model, thresholds, **settings)
    return model


def prune_with_(model: nn.Module, thresholds: Sequence[float] = SOME, **settings: Any) -> None:
    thresher.prune_(model, PruneConfig(**{"collapse_last": False, **settings}))
    gates_of(model).set_thresholds(thresholds)


def trace_of(model: nn.Module) -> Trace:
    trace = gates_of(model).trace
    assert trace is not None, "no forward pass has been traced"
    return trace


@torch.no_grad()
def run(model: Any, inputs: Inputs) -> tuple[Tensor, Trace]:
    """Logits and trace of one forward pass."""
    return outputs_in(model(**inputs)), trace_of(model)


@torch.no_grad()
def logits_of(model: Any, inputs: Inputs) -> Tensor:
    return outputs_in(model(**inputs))
