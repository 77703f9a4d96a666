"""The settings that a request, its TOML file and its recipe make together."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from thresher.config import RECIPES, PruneConfig, SearchConfig, TrainConfig, check_read, read_toml
from thresher.errors import ConfigError

TRAIN_SETTINGS, PRUNE_SETTINGS, SEARCH_SETTINGS = (
    tuple(item.name for item in fields(kind)) for kind in (TrainConfig, PruneConfig, SearchConfig)
)


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of TrainConfig and those of PruneConfig."""
    for name in settings:
        if name not in (*TRAIN_SETTINGS, *PRUNE_SETTINGS):
            known = ", ".join([*TRAIN_SETTINGS, *PRUNE_SETTINGS])
            raise ConfigError(f"unknown setting '{name}'; known settings: {known}")
    train, prune = (
        {name: value for name, value in settings.items() if name in names} for names in (TRAIN_SETTINGS, PRUNE_SETTINGS)
    )
    return train, prune


def resolve(
    recipe: str | None, config: Path | None, *, train_flags: dict[str, Any], prune_flags: dict[str, Any]
) -> tuple[TrainConfig, dict[str, Any]]:
    """Flag > TOML > recipe. A FLOPs target given on one level replaces a lambda of a lower one, and the other way.

    A file may serve several methods; a flag that the method does not read is an error. The score is the method's where
    none was chosen."""
    tables = read_toml(config) if config is not None else {}
    train_table = dict(tables.get("train", {}))
    own_recipe = train_table.pop("recipe", "default")
    for rival, other in (("target_flops", "lambda_"), ("lambda_", "target_flops")):
        if rival in train_flags and other not in train_flags:
            train_table.pop(other, None)
    train = TrainConfig.recipe_named(recipe or own_recipe, **{**train_table, **train_flags})
    check_read({**train_flags, **prune_flags}, method=train.method)
    prune = {**RECIPES[train.recipe]["prune"], **tables.get("prune", {}), **prune_flags}
    checked = PruneConfig.from_dict({"separator_id": 0, **prune})  # the real id comes with the tokenizer
    return train, {**prune, "score": checked.for_method(train.method).score}


def search_settings(max_drop: str | float, **others: Any) -> SearchConfig:
    """`max_drop` as people write it, '1%', '0.01' or 0.01, and what else was given."""
    text = str(max_drop).strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 0.5:
        raise ConfigError(f"--max-drop '{max_drop}' must be from 0% to 50%; write one point of the score as 1% or 0.01")
    return SearchConfig(max_drop=value, **others)
