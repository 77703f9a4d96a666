"""Checkpoints: an ordinary Hugging Face folder plus `thresher.json`.

The folder opens with plain `from_pretrained` as a dense model. `thresher.json` holds what the gates need and where the
numbers come from. Nothing is pickled. A folder appears whole or not at all: it is written beside and renamed.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.errors import CheckpointError, ConfigError, ModelError, is_failure
from thresher.models.attach import gates_of, prune_, weights_without_gates
from thresher.models.embedder import load_embedder
from thresher.models.folder import check_room, read_config
from thresher.models.heads import CLASSIFIER, KINDS, auto_class, head_of, set_head_
from thresher.models.manifest import FORMAT_VERSION as FORMAT_VERSION  # whoever opens runs finds these here
from thresher.models.manifest import MANIFEST as MANIFEST
from thresher.models.manifest import THRESHOLDS_ONLY, UNSAID, number_from_json, said
from thresher.models.manifest import read_manifest as read_manifest
from thresher.models.registry import family_named
from thresher.models.rules import rule_from
from thresher.models.sentence_folder import EMBEDDERS, check_encoder, is_embedder, read_stored
from thresher.models.stored import fit_tokenizer_, keep_stored_
from thresher.quiet import quiet
from thresher.records import write_json
from thresher.text import first_line
from thresher.workplace import expanded, path_problem, refusal

STAYS_TRUE = ("task", "recipe", "base_model")  # of a loaded run, when it is saved again; measurements may not


@dataclass
class Checkpoint:
    """A loaded run: the model with its gates in hard mode, its tokenizer, and everything else `thresher.json` says."""

    model: Any
    tokenizer: Any
    manifest: dict[str, Any] = field(default_factory=dict)


@quiet()
def save(
    model: Any,
    tokenizer: Any,
    path: str | Path,
    *,
    about: dict[str, Any] | None = None,
    dense: dict[str, Tensor] | None = None,
) -> None:
    """Write a pruned model as a Hugging Face folder with `thresher.json`.

    `about` adds recipe, quality and so on to the manifest; `dense`, the weights of the unpruned model, go into dense/.
    A run that is already there is replaced; a folder with anything else in it is refused.
    """
    folder = Path(expanded(path))
    if problem := path_problem(folder):
        raise CheckpointError(f"{str(folder)[:80]!r} cannot be a folder: {problem}; choose another")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder} holds something else than a thresher run; choose another folder")
    gates = gates_of(model)
    manifest = {
        **gates.about,
        **(about or {}),
        "format_version": THRESHOLDS_ONLY if gates.rule is None else FORMAT_VERSION,
        "model_type": model.config.model_type,
        "layers": len(gates.thresholds),
        "thresholds": [_number_to_json(value) for value in gates.thresholds.tolist()],
        "prune": said(gates.config),
        "head": head_of(model).to_dict(),
        **({} if gates.rule is None else {"rule": gates.rule.to_dict()}),
    }
    weights = weights_without_gates(model)
    with replacing_folder(folder) as new:
        model.save_pretrained(new, state_dict=weights)
        tokenizer.save_pretrained(new)
        if dense is not None:
            model.save_pretrained(new / "dense", state_dict=dict(dense))  # it empties what it is given
            tokenizer.save_pretrained(new / "dense")
        write_json(new / MANIFEST, manifest)


def load(path: str | Path) -> Checkpoint:
    """Open a folder written by `save`, with gates attached and everything checked before weights are read."""
    folder = Path(expanded(path))
    manifest = read_manifest(folder)
    _check_config(folder, manifest)
    model, tokenizer = load_dense(folder, whole=True)
    if "head" in manifest:
        _set_head_(model, _described(manifest["head"], head_of(model)), folder)
    prune_(model, PruneConfig.from_dict({**UNSAID, **manifest["prune"]}))
    gates = gates_of(model)
    try:
        gates.set_thresholds([number_from_json(value) for value in manifest["thresholds"]])
        if "rule" in manifest:
            gates.rule = rule_from(manifest["rule"], layers=len(gates.thresholds))
    except ConfigError as error:
        raise CheckpointError(f"{folder / MANIFEST}: {error}") from error
    gates.about = {name: manifest[name] for name in STAYS_TRUE if name in manifest}
    return Checkpoint(model=model.eval(), tokenizer=tokenizer, manifest=manifest)


def _check_config(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a config.json of another model than the manifest's before anything of its size is allocated."""
    config = read_config(folder)
    if config.model_type != manifest["model_type"]:
        raise CheckpointError(
            f"{folder / MANIFEST} is for model type '{manifest['model_type']}', but the folder holds a "
            f"'{config.model_type}'"
        )
    layers = getattr(config, "num_hidden_layers", manifest["layers"])
    if layers != manifest["layers"]:
        raise CheckpointError(
            f"{folder / MANIFEST}: {manifest['layers']} thresholds given for a model with {layers} layers"
        )


@quiet()
def load_dense(
    path: str | Path, *, whole: bool = False, means: str | None = None, **config_changes: Any
) -> tuple[Any, Any]:
    """Load a model with its head and its tokenizer from a folder or a hub name, checking the family first.

    A sentence embedder comes as an `Embedder`, a model with another head as what its folder says, or, where that has no
    head, as a sequence classifier. `config_changes` (num_labels, id2label...) build a new head, which gives what it
    `means`, where the folder has none that fits; with `whole`, the head must be there too. A missing encoder weight is
    always an error: the library would make one up.
    """
    from transformers import AutoTokenizer

    name = expanded(path)
    config = read_config(name, **config_changes)
    family_named(config.model_type)
    stored = None
    if config_changes and is_embedder(name):
        check_encoder(name)  # the head goes anyway, with whatever pooling it has
    else:
        stored = read_stored(name, read_config(name) if config_changes else config)
    embeds = stored is not None and stored.head.means == "embedding"
    kind = means or ("classes" if stored is None or config_changes else stored.head.means)
    check_room(name, config, whole=whole and not embeds, means=kind)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        if embeds:
            model, loading = load_embedder(name, config), None
        else:
            model, loading = auto_class(kind).from_pretrained(
                name, config=config, ignore_mismatched_sizes=True, output_loading_info=True, trust_remote_code=False
            )
    except ModelError:
        raise
    except BaseException as error:  # the loaders raise many kinds, from safetensors' to bare Exception and panics
        if not is_failure(error):
            raise
        raise ModelError(f"cannot load model and tokenizer from '{name}': {first_line(error)}") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes up when there are no files
        raise ModelError(f"'{name}' has no tokenizer; add its tokenizer.json (tokenizer.save_pretrained writes it)")
    if loading is not None:
        _check_complete(model, loading, name=name, whole=whole)
    _check_weights(model, name)
    if stored is not None and not config_changes:
        if not embeds:
            keep_stored_(model, stored)
        fit_tokenizer_(tokenizer, stored, config)
    return model, tokenizer


def _described(saved: dict[str, Any], own: Head) -> Head:
    """The head of a run's description. Where that says nothing of a score's activation, as it did not in the first
    versions, the folder does, as its base did."""
    head = Head.from_dict(saved)
    silent = head.means == own.means == "score" and "activation" not in saved
    return replace(head, activation=own.activation) if silent else head


def _set_head_(model: Any, head: Head, folder: Path) -> None:
    """What the run's description says of the outputs counts; that an embedder and a classifier differ is an error."""
    own = head_of(model)
    if (head.means == "embedding") != (own.means == "embedding") or head.reads != own.reads:
        raise CheckpointError(
            f"{folder / MANIFEST} is for a head that gives {head.means} and reads {head.reads}; the folder holds one "
            f"that gives {own.means} and reads {own.reads}"
        )
    if head.means != "embedding":
        set_head_(model, head)


def has_head(path: str | Path, num_labels: int | None = None, *, means: str | None = None) -> bool:
    """Whether the folder holds a model with a head, with this many outputs where the number is given, and of the kind
    that gives what is meant."""
    config = read_config(path)
    endings = (CLASSIFIER, *KINDS.values()) if means is None else (KINDS.get(means, CLASSIFIER),)
    return _is_made_for(config, endings) and num_labels in (None, config.num_labels)


def _is_made_for(config: Any, endings: tuple[str, ...]) -> bool:
    return any(name.endswith(endings) for name in config.architectures or [])


def _check_complete(model: Any, loading: dict[str, Any], *, name: str, whole: bool) -> None:
    """Refuse weights that were not in the file, except those of a head that is about to be trained."""
    mismatched = [item if isinstance(item, str) else item[0] for item in loading["mismatched_keys"]]
    made_up = sorted({*loading["missing_keys"], *mismatched})
    encoder = f"{model.base_model_prefix}."
    of_encoder = [key for key in made_up if key.startswith(encoder) and ".pooler." not in key]
    if whole and made_up and not of_encoder and not _is_made_for(model.config, (CLASSIFIER, *KINDS.values())):
        raise ModelError(
            f"'{name}' has no classification head; fine-tune it first, for example with: thresher prune. {EMBEDDERS}"
        )
    if not whole:
        made_up = of_encoder
    if made_up:
        raise ModelError(
            f"'{name}' lacks weights that its configuration asks for, {made_up[0]} among {len(made_up)}; "
            "the folder is damaged or its config.json is of another model"
        )


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Write into a temporary folder beside `path`, then put it in its place; on failure the old one stays."""
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; a folder is written there, so choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    old = Path(f"{temporary}.old")
    try:
        with _one_line_for_a_full_disk(path):
            yield temporary
        _let_all_read(temporary)
        try:
            if path.exists():
                os.replace(path, old)
            os.replace(temporary, path)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():  # else the old one is all that there is
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _one_line_for_a_full_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # weights and tokenizers are written by libraries with exceptions of their own
        why = refusal(error)
        if why is None:
            raise
        raise CheckpointError(f"cannot write {path}: {why}; free some space, or choose another folder") from error


def _let_all_read(folder: Path) -> None:
    """Who trains and who serves may be two users; temporary folders and safetensors' files are for one."""
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)


def _check_weights(model: nn.Module, name: str) -> None:
    for parameter_name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise ModelError(f"weight '{parameter_name}' of '{name}' contains NaN or infinity; the file is damaged")


def _number_to_json(value: float) -> float | str:
    """JSON has no infinity; the word is readable and unambiguous."""
    return value if math.isfinite(value) else str(value)
