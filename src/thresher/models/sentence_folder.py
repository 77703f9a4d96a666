"""What a sentence-transformers folder says beyond the Hugging Face model in it: pooling, prompts, lengths, scores.

Only text is read and compared; nothing that a folder names is imported. Versions 2 to 6 of the library write different
files for the same thing, and all are read. Whatever would change results and is not supported is refused by name.
"""

import json
from pathlib import Path
from typing import Any

from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.heads import (
    CLASSIFIER,
    HEADLESS,
    activation_kind,
    activation_of,
    cross_encoder_head,
    is_cross_encoder,
    named_head,
    unsupported_head,
)
from thresher.models.stored import MODULES, POOLING_KEYS, READS, SETTINGS, TRANSFORMER_FILES, Stored

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
TASKS = {"SentenceTransformer": "feature-extraction", "CrossEncoder": "sequence-classification"}
# Settings of the transformer module that choose how weights lie in memory, and change no result.
WITHOUT_EFFECT = {"add_pooling_layer", "attn_implementation", "dtype", "torch_dtype", "use_fast", "trust_remote_code"}


# What to do about a folder that holds an encoder alone.
EMBEDDERS = (
    "An embedding model is known by its modules.json, which says how its tokens become a vector: copy it from the "
    "model's page with 1_Pooling/config.json, or save the model with SentenceTransformer.save"
)


def is_embedder(name: str | Path) -> bool:
    """Whether the folder, or the model on the hub, is a sentence embedder."""
    return _find(name, MODULES) is not None and _kind(_settings(name)) == "SentenceTransformer"


def read_head(name: str | Path, config: Any) -> Head | None:
    """The head that the folder has; None where it has none to keep, like a pretrained encoder's."""
    stored = read_stored(name, config)
    return None if stored is None else stored.head


def read_stored(name: str | Path, config: Any) -> Stored | None:
    """All that a folder says of its head; None where it has none to keep, like a pretrained encoder's.

    config: the model's, from its config.json.
    """
    settings = _settings(name)
    modules = _modules(name)
    if modules is not None and _kind(settings) == "SentenceTransformer":
        return _embedder(name, config, modules, settings)
    architecture = _architecture(config)
    if _kind(settings) == "CrossEncoder" or is_cross_encoder(config):
        if not architecture.endswith(CLASSIFIER):
            raise ModelError(f"'{name}' is a cross-encoder made of {architecture or 'an unnamed model'}, {_not_yet()}")
        return _cross_encoder(name, config, modules or [("Transformer", "")], settings)
    if (head := named_head(architecture, config)) is not None:
        return Stored(head)
    if not architecture or architecture.endswith(HEADLESS):
        return None
    raise unsupported_head(architecture)


def check_encoder(name: str | Path) -> None:
    """Refuse an embedder's folder that changes its encoder beside the Hugging Face files; its pooling does not count.

    For whoever wants the encoder under a head of another kind.
    """
    modules = _modules(name) or []
    if not modules or modules[0][0] != "Transformer":
        kinds = ", ".join(kind for kind, _ in modules) or "(none)"
        raise ModelError(f"'{name}' is made of the modules {kinds}; an encoder is taken of a Transformer that is first")
    _transformer(name, modules[0][1], kind="SentenceTransformer")


def _embedder(name: str | Path, config: Any, modules: list[tuple[str, str]], settings: dict[str, Any]) -> Stored:
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"'{name}' is made of the modules {', '.join(kinds) or '(none)'}, {_not_yet()}; supported: Transformer, "
            "Pooling, and Normalize after them"
        )
    max_length, lower_case = _transformer(name, modules[0][1], kind="SentenceTransformer")
    pooling = _read(name, _inside(name, modules[1][1], "config.json"), needed=True)
    if len(modules) == 3:
        _check_normalize(name, modules[2][1])
    prompts, default_prompt = _prompts(name, settings)
    if not _typed(pooling, "include_prompt", bool, where=f"{name}: pooling", default=True) and any(prompts.values()):
        raise ModelError(f"'{name}' leaves prompts out of its pooling (include_prompt = false), {_not_yet()}")
    width = _typed(settings, "truncate_dim", int, where=f"{name}: {SETTINGS}")
    if width is not None and not 1 <= width <= config.hidden_size:
        raise ModelError(f"'{name}' has truncate_dim = {width}; its embeddings have {config.hidden_size} numbers")
    similarity = _typed(settings, "similarity_fn_name", str, where=f"{name}: {SETTINGS}")
    if similarity is not None and similarity not in SIMILARITIES:
        raise ModelError(f"'{name}' compares by '{similarity}'; supported: {', '.join(SIMILARITIES)}")
    head = Head(
        reads=_reads(name, pooling, config),
        means="embedding",
        normalised=len(modules) == 3,
        width=width,
        prompts=prompts,
        default_prompt=default_prompt,
    )
    return Stored(head, max_length=max_length, lower_case=lower_case, similarity=similarity)


def _cross_encoder(name: str | Path, config: Any, modules: list[tuple[str, str]], settings: dict[str, Any]) -> Stored:
    kinds = [kind for kind, _ in modules]
    if kinds != ["Transformer"]:
        raise ModelError(f"'{name}' is a cross-encoder made of the modules {', '.join(kinds)}, {_not_yet()}")
    prompts, _ = _prompts(name, settings)
    if any(prompts.values()):
        raise ModelError(f"'{name}' is a cross-encoder with prompts ({', '.join(prompts)}), {_not_yet()}")
    max_length, lower_case = _transformer(name, modules[0][1], kind="CrossEncoder")
    saved = _typed(settings, "activation_fn", str, where=f"{name}: {SETTINGS}")
    activation = saved if saved is not None else activation_of(config)
    return Stored(
        cross_encoder_head(config, activation),
        max_length=max_length,
        lower_case=lower_case,
        activation=activation_kind(config, activation),
    )


def _reads(name: str | Path, pooling: dict[str, Any], config: Any) -> str:
    """first or mean. One key with the mode's name, or before version 6 one key of true or false for every mode."""
    where = f"{name}: pooling"
    modes = pooling.get("pooling_mode")
    if modes is None:
        chosen = [mode for mode, key in POOLING_KEYS.items() if _typed(pooling, key, bool, where=where, default=False)]
        modes = chosen or ["mean"]
    elif isinstance(modes, str):
        modes = [modes]
    if not isinstance(modes, list) or not modes or not all(isinstance(mode, str) for mode in modes):
        raise ModelError(f"{where} has pooling_mode = {modes!r}; it must be the name of a mode")
    if len(modes) > 1 or modes[0] not in READS:
        raise ModelError(f"'{name}' pools by {' and '.join(modes)}, {_not_yet()}; supported: {' or '.join(READS)}")
    for key in ("embedding_dimension", "word_embedding_dimension"):
        width = _typed(pooling, key, int, where=where)
        if width is not None and width != config.hidden_size:
            raise ModelError(f"{where} has {key} = {width}, and the encoder's width is {config.hidden_size}")
    return READS[modes[0]]


def _transformer(name: str | Path, path: str, *, kind: str) -> tuple[int | None, bool]:
    """max_seq_length and do_lower_case, after checking that nothing else there changes the model."""
    if path not in ("", "."):
        raise ModelError(
            f"'{name}' keeps its encoder in the folder {path}, as very old versions did; open it with "
            "sentence_transformers and save it again"
        )
    found = next((file for file in TRANSFORMER_FILES if _find(name, file) is not None), None)
    values = {} if found is None else _read(name, found, needed=True)
    where = f"{name}: {found}"
    task = _typed(values, "transformer_task", str, where=where, default=TASKS[kind])
    if task != TASKS[kind]:
        raise ModelError(f"{where} has transformer_task = '{task}'; a {kind} needs '{TASKS[kind]}'")
    for key in ("query_length", "document_length", "query_expansion", "processing_kwargs"):
        if values.get(key):
            raise ModelError(f"{where} has {key} = {values[key]!r}, {_not_yet()}")
    for old, new in (("model_args", "model_kwargs"), ("tokenizer_args", "processor_kwargs")):
        _check_harmless(values, (old, new), where=where, harmless=WITHOUT_EFFECT)
    _check_harmless(values, ("config_args", "config_kwargs"), where=where, harmless={"trust_remote_code"})
    _check_modalities(values, where=where, kind=kind)
    max_length = _typed(values, "max_seq_length", int, where=where)
    if max_length is not None and max_length < 1:
        raise ModelError(f"{where} has max_seq_length = {max_length}; it must be at least 1")
    return max_length, _typed(values, "do_lower_case", bool, where=where, default=False)


def _check_modalities(values: dict[str, Any], *, where: str, kind: str) -> None:
    """Text goes through the model's forward, and what is read of it is what every version reads."""
    modalities = _typed(values, "modality_config", dict, where=where)
    if modalities is None:
        return
    output = "last_hidden_state" if kind == "SentenceTransformer" else "logits"
    if modalities.get("text") != {"method": "forward", "method_output_name": output}:
        raise ModelError(f"{where} has modality_config = {modalities!r}; only text by 'forward' and '{output}' is read")


def _check_harmless(values: dict[str, Any], keys: tuple[str, str], *, where: str, harmless: set[str]) -> None:
    for key in keys:
        foreign = sorted(set(_typed(values, key, dict, where=where, default={})) - harmless)
        if foreign:
            raise ModelError(f"{where} sets {key} ({', '.join(foreign)}), {_not_yet()}")


def _check_normalize(name: str | Path, path: str) -> None:
    values = _read(name, _inside(name, path, "config.json"), needed=False)
    for key in ("module_input_name", "module_output_name"):
        if values.get(key) not in (None, "sentence_embedding"):
            raise ModelError(f"'{name}' normalises {values[key]!r} and not its sentence embeddings, {_not_yet()}")


def _prompts(name: str | Path, settings: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    where = f"{name}: {SETTINGS}"
    given = _typed(settings, "prompts", dict, where=where, default={})
    prompts = {key: text for key, text in given.items() if text is not None}
    if not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{where} has prompts = {given!r}; they must be texts by their names")
    default = _typed(settings, "default_prompt_name", str, where=where)
    if default is not None and default not in prompts:
        raise ModelError(
            f"{where} has default_prompt_name = '{default}'; its prompts are {', '.join(prompts) or '(none)'}"
        )
    return prompts, default


def _kind(settings: dict[str, Any]) -> str:
    """SentenceTransformer or CrossEncoder; old folders of the first kind do not say so."""
    kind = settings.get("model_type", "SentenceTransformer")
    if not isinstance(kind, str) or kind not in TASKS:
        raise ModelError(f"{SETTINGS} has model_type = {kind!r}, {_not_yet()}; supported: {', '.join(TASKS)}")
    return kind


def _settings(name: str | Path) -> dict[str, Any]:
    return _read(name, SETTINGS, needed=False)


def _modules(name: str | Path) -> list[tuple[str, str]] | None:
    """(kind, folder) of every module, in order; None where the folder has no modules.json."""
    file = _find(name, MODULES)
    if file is None:
        return None
    values = _parsed(file)
    if not isinstance(values, list):
        raise ModelError(f"{file} must be a list of modules, not {type(values).__name__}")
    return [_module(file, value) for value in values]


def _module(file: Path, value: Any) -> tuple[str, str]:
    kind, path = (value.get("type"), value.get("path")) if isinstance(value, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(path, str):
        raise ModelError(f"{file} has a module without type and path: {value!r}")
    if not kind.startswith("sentence_transformers."):
        raise ModelError(f"{file} names the module {kind}, which is code of its own; thresher runs none from folders")
    return kind.rpartition(".")[2], path


def _architecture(config: Any) -> str:
    names = getattr(config, "architectures", None) or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ModelError(f"architectures = {names!r} in config.json must be a list of names")
    return names[0]


def _inside(name: str | Path, path: str, file: str) -> str:
    """The file's place in the folder. A path that leads out of it is refused."""
    parts = Path(path).parts
    if not parts or Path(path).is_absolute() or ".." in parts or "\\" in path or "\0" in path:
        raise ModelError(f"'{name}' names the module folder {path!r}; it must lie inside the model's folder")
    return f"{path}/{file}"


def _find(name: str | Path, file: str) -> Path | None:
    """A file of a local folder or of a model on the hub; None where there is none."""
    place = Path(name).expanduser()
    if place.exists():
        return place / file if (place / file).is_file() else None
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(
            str(name), file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
    except Exception as error:  # the hub's library raises many kinds
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"cannot look for {file} of '{name}': {first[0]}") from error
    return None if found is None else Path(found)


def _read(name: str | Path, file: str, *, needed: bool) -> dict[str, Any]:
    found = _find(name, file)
    if found is None:
        if needed:
            raise ModelError(f"'{name}' has no {file}, which its {MODULES} asks for")
        return {}
    values = _parsed(found)
    if not isinstance(values, dict):
        raise ModelError(f"{found} must be a block of settings, not {type(values).__name__}")
    return values


def _parsed(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, numbers without end
        raise ModelError(f"{file} is not valid JSON: {error}") from error


def _typed(values: dict[str, Any], key: str, kind: type, *, where: str, default: Any = None) -> Any:
    """values[key] of this type, or `default` where it is missing or null."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", bool: "true or false", str: "a text", dict: "a block of settings"}
        raise ModelError(f"{where} has {key} = {value!r}; it must be {names[kind]}")
    return value


def _not_yet() -> str:
    return "which is not supported yet"
