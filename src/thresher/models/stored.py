"""What a sentence-transformers folder holds beside the model: as a value, on model and tokenizer, and as files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.core.heads import Head
from thresher.models.heads import ACTIVATIONS, set_head_
from thresher.records import write_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
READS = {"cls": "first", "mean": "mean"}
OLD_NAME = "sentence_transformers.models"  # of all modules, for version 2 and ever since


@dataclass(frozen=True)
class Stored:
    """head: what is read and what it means. max_length, in tokens, and lower_case are for the tokenizer.

    activation: sigmoid, identity or softmax, which a cross-encoder's users see; similarity: how embeddings compare.
    """

    head: Head
    max_length: int | None = None
    lower_case: bool = False
    activation: str | None = None
    similarity: str | None = None


def keep_stored_(model: Any, stored: Stored) -> None:
    """Make a sequence classifier remember its head, and its config.json the activation of a cross-encoder, in place.

    The entry is that of version 4, which later ones read too: whoever saves the model saves a cross-encoder.
    """
    set_head_(model, stored.head)
    if stored.activation is not None:
        name = next(name for name, kind in ACTIVATIONS.items() if kind == stored.activation)
        model.config.sentence_transformers = {"activation_fn": name}


def fit_tokenizer_(tokenizer: Any, stored: Stored, config: Any) -> None:
    """Give a tokenizer the folder's longest text and lower case, in place, as sentence-transformers does."""
    positions = getattr(config, "max_position_embeddings", None)
    if stored.max_length is not None:
        tokenizer.model_max_length = stored.max_length
    elif positions is not None and positions > 0:
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    if not stored.lower_case:
        return
    from tokenizers.normalizers import Lowercase, Sequence

    inner = tokenizer.backend_tokenizer
    if "Lowercase()" not in str(inner.normalizer):
        inner.normalizer = Sequence([Lowercase(), *([] if inner.normalizer is None else [inner.normalizer])])


def write_folder(folder: Path, stored: Stored, *, width: int) -> None:
    """The files of sentence-transformers beside an encoder's. width: the encoder's."""
    head = stored.head
    kinds = {"": "Transformer", "1_Pooling": "Pooling", **({"2_Normalize": "Normalize"} if head.normalised else {})}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{OLD_NAME}.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    mode = next(name for name, reads in READS.items() if reads == head.reads)
    old_modes = ("cls", "mean", "max", "mean_sqrt_len_tokens")  # version 2 knows no others
    pooling = {"word_embedding_dimension": width, **{POOLING_KEYS[name]: name == mode for name in old_modes}}
    settings: dict[str, Any] = {"prompts": dict(head.prompts), "default_prompt_name": head.default_prompt}
    known = {"similarity_fn_name": stored.similarity, "truncate_dim": head.width}
    settings |= {name: value for name, value in known.items() if value is not None}
    write_json(folder / MODULES, modules)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    if head.normalised:
        write_json(folder / "2_Normalize" / "config.json", {})
    write_json(folder / TRANSFORMER_FILES[0], {"max_seq_length": stored.max_length, "do_lower_case": stored.lower_case})
    write_json(folder / SETTINGS, settings)
