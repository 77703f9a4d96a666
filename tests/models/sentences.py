"""Tiny sentence-transformers folders of the kinds that versions 2 to 6 of the library write."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel

from tests.models.families import randomize_, tiny_config, tiny_model
from tests.words import word_tokenizer

WORDS = ("a", "gripping", "film", "two", "hours", "of", "fog", "over", "the", "river", "query", ":", "passage")
TEXTS = ["a gripping film", "fog", "two hours of fog over the river the river", "the film of the river", "a a a"]
PAIRS = [
    ("a film", "two hours of fog"),
    ("fog", "a"),
    ("the river", "fog over the river of the gripping film"),
    ("a", "a"),
]
VERSION_2 = "sentence_transformers.models"


def write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def embedder_folder(
    folder: Path,
    family: str = "bert",
    *,
    pooling: dict[str, Any] | None = None,
    kinds: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    settings: dict[str, Any] | None = None,
    transformer: dict[str, Any] | None = None,
    pad: int = 0,
) -> Path:
    """A folder as version 2 writes it, with an encoder and a tokenizer of whole words."""
    encoder = AutoModel.from_config(tiny_config(family, pad_token_id=pad))
    randomize_(encoder, 0)
    encoder.eval().save_pretrained(folder)
    tokens = ["input_ids", "attention_mask"] if family == "distilbert" else None
    tokenizer = word_tokenizer(WORDS)
    if tokens:
        tokenizer.model_input_names = tokens
    tokenizer.save_pretrained(folder)
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    write(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"{VERSION_2}.{kind}"}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ],
    )
    chosen = pooling or {"pooling_mode_mean_tokens": True}
    if "Pooling" in kinds:
        write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": encoder.config.hidden_size, **chosen})
    if "Normalize" in kinds:
        (folder / paths[kinds.index("Normalize")]).mkdir(exist_ok=True)
    if settings is not None:
        write(folder / "config_sentence_transformers.json", settings)
    write(folder / "sentence_bert_config.json", transformer or {"max_seq_length": 16, "do_lower_case": False})
    return folder


def cross_encoder_folder(folder: Path, family: str = "bert", *, labels: int = 1, **entries: Any) -> Path:
    """A classifier's folder; `entries` of its config.json say that it is a cross-encoder, up to version 5."""
    model = tiny_model(family, num_labels=labels, pad_token_id=0).float()
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", config | entries)
    return folder


def config_of(folder: Path) -> Any:
    return AutoConfig.from_pretrained(folder)
