"""What a model folder says of itself, checked before anything is allocated: config.json beside the weights' shapes.

A folder may come from anybody. Its configuration decides how much memory a loader takes, so it is believed only where
the weights are there to fill that memory, and code that comes with a folder is never run.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from thresher.errors import ModelError
from thresher.models.heads import auto_class
from thresher.records import read_json
from thresher.text import first_line
from thresher.workplace import expanded, path_problem

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model*.bin"

# Names of sizes in the configurations of all families: none is larger than the largest dimension of a weight.
SIZES = (
    "num_labels",
    *("vocab_size", "hidden_size", "dim", "embedding_size", "intermediate_size", "hidden_dim"),
    *("max_position_embeddings", "num_attention_heads", "n_heads", "inner_group_num", "num_hidden_groups"),
)
LAYERS = ("num_hidden_layers", "n_layers")
MOST_LAYERS = 1000  # where all share their weights, the weights' number says nothing
# Sizes and sums a little beyond the weights cost nothing: they are left to the loader, which names what is missing. And
# a folder without a head may name more classes than any weight has rows.
SPARE_SIZE = 10_000
SPARE_NUMBERS = 2**24


OWN_CODE = (
    "it is of a kind that transformers does not know, and comes with code of its own, which thresher never runs; "
    "take a model of a family that is listed by: thresher doctor --families"
)


@dataclass(frozen=True)
class Held:
    """What the weights' files hold: tensors (None where only unpickling would tell), all their numbers, and the largest
    dimension."""

    tensors: int | None
    numbers: int
    largest: int


def read_config(path: str | Path, **changes: Any) -> Any:
    """The model's configuration; a path that leads nowhere is told apart from a name on the hub."""
    from transformers import AutoConfig

    name = expanded(path)
    if problem := path_problem(name):
        raise ModelError(f"'{name[:60]}' cannot be the name of a model: {problem}")
    if not Path(name).exists():
        _check_hub_name(name)
    if Path(name).is_dir() and not (Path(name) / CONFIG).is_file():
        raise ModelError(f"{name} is not a Hugging Face model folder: it has no {CONFIG}")
    _check_configuration(name)
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **changes)
    except Exception as error:  # a damaged file raises many kinds, from OSError to the hub library's own
        if "trust_remote_code" in str(error):
            raise unreadable(name, OWN_CODE) from error
        nowhere = "" if Path(name).exists() else f"; there is no folder {name} either"
        raise unreadable(name, f"{first_line(error).rstrip('.')}{nowhere}") from error


def check_room(name: str, config: Any, *, whole: bool, means: str = "classes") -> None:
    """Refuse a configuration that asks for far more numbers than the weights' files hold, before they are allocated.

    `whole` counts the head, too, which is otherwise about to be made; `means` says of what kind it is.
    """
    held = held_by(name)
    if held is None:
        return  # there are no weights at all, which the loader says
    try:
        with torch.device("meta"):  # shapes without memory
            model = auto_class(means).from_config(config, trust_remote_code=False)
    except Exception as error:  # sizes that do not go together raise many kinds
        if "Unrecognized configuration class" in str(error):
            raise ModelError(
                f"the transformers library has no {auto_class(means).__name__.removeprefix('AutoModelFor')} for "
                f"'{config.model_type}', the family of '{name}'; take a model of a family that has one, such as "
                "roberta, modernbert or deberta-v2"
            ) from error
        raise ModelError(f"cannot make a model of the configuration of '{name}': {first_line(error)}") from error
    parts = model if whole else model.base_model
    needed = sum(value.numel() for key, value in parts.named_parameters() if whole or not key.startswith("pooler."))
    if needed > held.numbers + SPARE_NUMBERS:
        raise ModelError(
            f"'{name}' lacks weights: its configuration asks for {needed:,} numbers and its files hold "
            f"{held.numbers:,}; the folder is damaged or its config.json is of another model"
        )


def held_by(name: str) -> Held | None:
    """What the weights' files of a folder or a hub name hold; None where there are none."""
    single, index = _file(name, WEIGHTS), _file(name, INDEX)
    if single is not None:
        return _held([single], name)
    if index is not None:
        return _held(_shards(name, index), name)
    pickled = sum(file.stat().st_size for file in Path(name).glob(PICKLED)) if Path(name).is_dir() else 0
    numbers = pickled // 2  # the smallest that weights are saved in
    return Held(None, numbers, largest=numbers) if numbers else None


def unreadable(name: str, why: str) -> ModelError:
    return ModelError(f"cannot read a model configuration from '{name}': {why}")


def _check_configuration(name: str) -> None:
    """Sizes, layers and classes as config.json writes them: the library would count up to any number."""
    file = _file(name, CONFIG)
    if file is None:
        return  # a hub name that cannot be reached, which the library says
    try:
        written = read_json(file, error=ModelError)
    except ModelError as error:
        raise unreadable(name, str(error)) from error
    if not isinstance(written, dict):
        raise unreadable(name, f"its {CONFIG} is no JSON object")
    held = held_by(name)
    largest = math.inf if held is None else max(held.largest, SPARE_SIZE)
    for key in (*SIZES, "type_vocab_size"):
        _check_number(name, written, key, low=int(key != "type_vocab_size"), high=largest)
    shared = written.get("model_type") == "albert"
    deepest = MOST_LAYERS if held is None or held.tensors is None or shared else min(MOST_LAYERS, held.tensors)
    for key in LAYERS:
        _check_number(name, written, key, low=1, high=deepest)
    _check_labels(name, written.get("id2label"))


def _check_number(name: str, written: dict[str, Any], key: str, *, low: int, high: float) -> None:
    value = written.get(key)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        shown = repr(value)[:40]
        raise ModelError(f"'{name}' has {key} = {shown} in its {CONFIG}; it must be a whole number, at least {low}")
    if value > high:
        raise ModelError(
            f"'{name}' has {key} = {value:,} in its {CONFIG}, but its weights allow for {high:,} at most; the "
            f"folder is damaged or its {CONFIG} is of another model"
        )


def _check_labels(name: str, labels: Any) -> None:
    if labels is None:
        return
    if not isinstance(labels, dict) or not labels:
        shown = repr(labels)[:40]
        raise ModelError(f"'{name}' has id2label = {shown} in its {CONFIG}; it must give every class a name")
    missing = next((number for number in range(len(labels)) if str(number) not in labels), None)
    if missing is not None:
        raise ModelError(
            f"'{name}' has {len(labels)} names in id2label in its {CONFIG}, but none for class {missing}; "
            f"number them from 0 to {len(labels) - 1}"
        )


def _check_hub_name(name: str) -> None:
    """Refuse what can only be meant as a folder: the hub would be blamed for it. Its names are `a` and `owner/a`."""
    owner, slash, rest = name.partition("/")
    if name.startswith((".", "/", "~")) or "/" in rest or (slash and not rest):
        raise ModelError(f"model folder {name} does not exist")
    if slash and Path(owner).is_dir():
        raise ModelError(f"model folder {name} does not exist; {owner} is a folder here, so the hub is not asked")


def _file(name: str, file: str) -> Path | None:
    """A file of a folder, or of a hub name by way of its cache; None where there is none or the hub is out of reach."""
    if Path(name).exists():
        return Path(name) / file if (Path(name) / file).is_file() else None
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(name, file)
    except Exception:  # the hub library has many kinds; whoever loads the file afterwards gives the reason
        return None
    return None if found is None else Path(found)


def _held(files: list[Path], name: str) -> Held:
    """The headers of safetensors files, whose sizes the library checks against the files' own; no weight is read."""
    shapes: list[list[int]] = []
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                shapes += [opened.get_slice(key).get_shape() for key in opened.keys()]
        except (SafetensorError, OSError) as error:
            why = f"{file.name}: {first_line(error)}"
            raise ModelError(f"cannot load model and tokenizer from '{name}': {why}") from error
    return Held(
        tensors=len(shapes),
        numbers=sum(math.prod(shape) for shape in shapes),
        largest=max((size for shape in shapes for size in shape), default=0),
    )


def _shards(name: str, index: Path) -> list[Path]:
    described = read_json(index, error=ModelError)
    named = described.get("weight_map") if isinstance(described, dict) else None
    files = set(map(str, named.values())) if isinstance(named, dict) else set()
    found = [_file(name, file) for file in sorted(files) if file == Path(file).name and path_problem(file) is None]
    if not files or len(found) < len(files) or None in found:
        raise ModelError(f"'{name}' has a {INDEX} that does not name the files beside it; the folder is damaged")
    return [file for file in found if file is not None]
