"""What a model's outputs mean: read from its configuration, or set by whoever loaded it. A head is never made up."""

from typing import Any

import torch
from torch import Tensor, nn

from thresher.core.heads import Head
from thresher.errors import ModelError

HEAD_NAME = "thresher_head"
CLASSIFIER = "ForSequenceClassification"
# What transformers calls models by what their heads mean: one class a text, an answer's span, a class a token.
KINDS = {"span": "ForQuestionAnswering", "tags": "ForTokenClassification"}
SPAN_OUTPUTS = 2  # start and end
# Architectures without a head of their own, or with one that only pretraining uses: nothing is lost with it.
HEADLESS = ("Model", "ForMaskedLM", "ForPreTraining")
PROBLEMS = {"regression": "value", "single_label_classification": "classes", "multi_label_classification": "labels"}
# What a cross-encoder's folder says of its scores, by the names that it writes. Nothing is imported by name.
ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Softmax": "softmax",
}
POOLINGS = {"cls": "first", "mean": "mean"}  # as ModernBERT's configuration calls them
LEGACY_ACTIVATION = "sbert_ce_default_activation_function"  # in config.json, before version 4


def head_of(model: Any) -> Head:
    """The head of a model in memory: an Embedder's own, or a sequence classifier's. Others are refused by name."""
    own = getattr(model, "head", None)
    if isinstance(own, Head):
        return own
    if not hasattr(model, "config"):
        raise ModelError(f"{type(model).__name__} is not a Hugging Face model; load one with from_pretrained")
    found = next((head for kind in type(model).__mro__ if (head := named_head(kind.__name__, model.config))), None)
    if found is None:
        raise unsupported_head(type(model).__name__)
    chosen = getattr(model, HEAD_NAME, None)
    return chosen if isinstance(chosen, Head) else found


def named_head(architecture: str, config: Any) -> Head | None:
    """The head of a class of models by its name, such as BertForQuestionAnswering; None where we know none."""
    if architecture.endswith(CLASSIFIER):
        return classifier_head(config)
    means = next((means for means, ending in KINDS.items() if architecture.endswith(ending)), None)
    if means == "span" and config.num_labels != SPAN_OUTPUTS:
        raise ModelError(
            f"{architecture} has {config.num_labels} outputs a token; start and end of an answer are {SPAN_OUTPUTS}"
        )
    return None if means is None else Head(reads="tokens", means=means)


def outputs_in(output: Any) -> Tensor:
    """What the head gave, of whatever a model returns: (batch, outputs), or of tokens (batch, tokens, outputs)."""
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    logits: Tensor = output.logits
    return logits


def auto_class(means: str) -> Any:
    """The class of transformers that loads and makes models with heads of this meaning."""
    import transformers

    return getattr(transformers, f"AutoModel{KINDS.get(means, CLASSIFIER)}")


def set_head_(model: nn.Module, head: Head) -> None:
    """Say what a model's outputs mean, in place: what `head_of` gives from now on."""
    present = head_of(model)
    other = head.means != present.means and "tokens" in (head.reads, present.reads)
    if head.means == "embedding" or head.reads != present.reads or other:
        raise ModelError(
            f"{type(model).__name__} gives no {head.means} that reads {head.reads}; its outputs are {present.means}, "
            f"and its head reads {present.reads}"
        )
    _check_outputs(head.means, model.config.num_labels)  # type: ignore[union-attr, arg-type]
    setattr(model, HEAD_NAME, head)


def classifier_head(config: Any) -> Head:
    """A sequence classifier's head, by its configuration: problem_type, num_labels, a cross-encoder's entries."""
    if is_cross_encoder(config):
        return cross_encoder_head(config, activation_of(config))
    problem = getattr(config, "problem_type", None)
    if problem is not None and problem not in PROBLEMS:
        raise ModelError(f"problem_type = {problem!r} in config.json is not one of: {', '.join(PROBLEMS)}")
    reads = pooling_of(config)
    if problem == "multi_label_classification":
        return Head(reads=reads, means="labels")
    if config.num_labels == 1:
        return Head(reads=reads, means="value")
    means = PROBLEMS[problem or "single_label_classification"]
    _check_outputs(means, config.num_labels)
    return Head(reads=reads, means=means)


def pooling_of(config: Any) -> str:
    """What a sequence classifier reads: the first token, unless its configuration names another pooling."""
    pooling = getattr(config, "classifier_pooling", "cls")
    if pooling not in POOLINGS:
        raise ModelError(f"classifier_pooling = {pooling!r} in config.json is not one of: {', '.join(POOLINGS)}")
    return POOLINGS[pooling]


def is_cross_encoder(config: Any) -> bool:
    """Whether config.json itself says so, as sentence-transformers writes it up to version 5."""
    own = getattr(config, "sentence_transformers", None)
    if own is not None and not isinstance(own, dict):
        raise ModelError(f"'sentence_transformers' in config.json is {own!r}; it must be a block of settings")
    return own is not None or hasattr(config, LEGACY_ACTIVATION)


def activation_of(config: Any) -> str | None:
    """The name of a cross-encoder's activation in config.json, if there is one."""
    own = getattr(config, "sentence_transformers", None) or {}
    found = own.get("activation_fn", getattr(config, LEGACY_ACTIVATION, None))
    if found is not None and not isinstance(found, str):
        raise ModelError(f"the cross-encoder's activation in config.json is {found!r}; it must be a name")
    return found


def activation_kind(config: Any, name: str | None) -> str:
    """sigmoid, identity or softmax. Without a name: sigmoid for one output and identity for several, as there."""
    if name is None:
        return "sigmoid" if config.num_labels == 1 else "identity"
    if name not in ACTIVATIONS:
        raise ModelError(
            f"the cross-encoder's activation '{name}' is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def cross_encoder_head(config: Any, activation: str | None) -> Head:
    """One output is a score. Several are classes, or labels where each has a sigmoid of its own."""
    kind = activation_kind(config, activation)
    if config.num_labels == 1:
        if kind == "softmax":
            raise ModelError(f"the cross-encoder's activation '{activation}' makes every single score 1")
        return Head(reads=pooling_of(config), means="score", activation=kind)
    labels = kind == "sigmoid" or getattr(config, "problem_type", None) == "multi_label_classification"
    return Head(reads=pooling_of(config), means="labels" if labels else "classes")


def unsupported_head(name: str) -> ModelError:
    return ModelError(
        f"{name} is not supported yet: thresher takes sequence classifiers, cross-encoders, sentence embedders, and "
        "models for question answering and token classification, and never replaces a head in silence; load the folder "
        "with AutoModelForSequenceClassification for a new one"
    )


def _check_outputs(means: str, outputs: int) -> None:
    if means in ("value", "score") and outputs != 1:
        raise ModelError(f"a {means} is one output, and the model has {outputs}; it can mean classes or labels")
    if means == "classes" and outputs < 2:
        raise ModelError(f"classes are at least two outputs, and the model has {outputs}; it can mean a value or score")
