"""The supported families, and the checks that a model belongs to one."""

from typing import Any

from thresher.errors import ModelError
from thresher.models import albert, bert, deberta, distilbert, modernbert, mpnet, roberta_prelayernorm, rotary
from thresher.models.adapter import Family
from thresher.models.heads import head_of

FAMILIES: tuple[Family, ...] = (
    *(bert.FAMILY, distilbert.FAMILY, albert.FAMILY, mpnet.FAMILY),
    *(rotary.FAMILY, modernbert.FAMILY, deberta.FAMILY, roberta_prelayernorm.FAMILY),
)

# What to train instead of a family that people ask for and that is not there: the one most like it.
NEAREST = {
    **dict.fromkeys(("deberta",), "deberta-v2, which is also that of DeBERTa-v3"),
    **dict.fromkeys(("eurobert", "longformer", "big_bird", "ultrabert"), "modernbert, for texts of up to 8,192 tokens"),
    **dict.fromkeys(("roformer", "jina_embeddings_v3", "new"), "gte or nomic_bert, which rotate queries and keys"),
    **dict.fromkeys(("data2vec-text", "xlm-roberta-xl"), "roberta or xlm-roberta"),
    **dict.fromkeys(("ernie", "megatron-bert", "mobilebert", "squeezebert", "convbert", "nezha"), "bert"),
}
ELSE = "nothing here is like it: fine-tune one of these instead, modernbert where texts are long"


def supported_types() -> list[str]:
    return [name for family in FAMILIES for name in family.model_types]


def family_named(model_type: str) -> Family:
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    near = f"its nearest is {NEAREST[model_type]}" if model_type in NEAREST else ELSE
    raise ModelError(f"model family '{model_type}' is not supported; supported: {', '.join(supported_types())}; {near}")


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
    if reason := family.refusal(config):
        raise ModelError(f"this {config.model_type} model is not supported: {reason}")
    return family
