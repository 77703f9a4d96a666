"""The supported families, and the checks that a model belongs to one."""

from typing import Any

from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models import albert, bert, distilbert, mpnet
from thresher.models.adapter import Family

FAMILIES: tuple[Family, ...] = (bert.FAMILY, distilbert.FAMILY, albert.FAMILY, mpnet.FAMILY)


def supported_types() -> list[str]:
    return [name for family in FAMILIES for name in family.model_types]


def family_named(model_type: str) -> Family:
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    raise ModelError(f"model family '{model_type}' is not supported; supported: {', '.join(supported_types())}")


def family_of(model: Any) -> Family:
    """The model's family, after checking that its head is one that we know and that it is a plain encoder."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "model_type"):
        raise ModelError(f"{type(model).__name__} is not a Hugging Face model; load one with from_pretrained")
    family = family_named(config.model_type)
    head_of(model)
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ModelError(f"{type(model).__name__} is configured as a decoder; only encoders can be pruned")
    if getattr(config, "position_embedding_type", "absolute") not in (None, "absolute"):
        raise ModelError(
            f"position_embedding_type = '{config.position_embedding_type}' is not supported; only 'absolute' is"
        )
    return family


def head_of(model: Any) -> Head:
    """What the model's head reads, and what its outputs mean; a head that is not supported is refused by name."""
    given = getattr(model, "thresher_head", None)
    if isinstance(given, Head):
        return given
    if not any(kind.__name__.endswith("ForSequenceClassification") for kind in type(model).__mro__):
        raise ModelError(
            f"{type(model).__name__} has no sequence-classification head; load the folder with "
            "AutoModelForSequenceClassification"
        )
    if model.config.problem_type == "multi_label_classification":
        return Head(means="labels")
    if model.config.num_labels > 1:
        if model.config.problem_type == "regression":
            raise ModelError(
                f"the model predicts {model.config.num_labels} numbers for a text; only one number is supported"
            )
        return Head(means="classes")
    return Head(means="value")
