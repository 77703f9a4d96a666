"""`thresher.json`, which makes a Hugging Face folder a run: read, and checked before anything else is."""

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.errors import CheckpointError, ConfigError
from thresher.methods import with_methods_today
from thresher.models.rules import rule_from
from thresher.records import read_json, thresher_version
from thresher.text import shown
from thresher.workplace import folder_here

FORMAT_VERSION = 2
THRESHOLDS_ONLY = 1  # what a run without another rule is written as, so that older versions can open it
MANIFEST = "thresher.json"
DENSE_THRESHOLD = "dense_null_threshold"
# What runs mean, of both formats, that do not say these settings: versions before them cannot read their names. Every
# other setting has always been written, and without it the default would be taken: other answers, without a word.
UNSAID: dict[str, Any] = {"score": "attention", "score_queries": 1, "rejoin": 0}


def is_run(path: str | Path) -> bool:
    """Whether a folder was written by thresher; text that can be no path names none."""
    folder = folder_here(path)
    return folder is not None and (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check `thresher.json`."""
    file = folder / MANIFEST
    if not is_run(folder):
        raise CheckpointError(f"{folder} is not a thresher run: it has no {MANIFEST}; make one with: thresher prune")
    manifest = read_json(file, error=CheckpointError)
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{file} has no format_version; it was not written by thresher")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {version}, newer than {FORMAT_VERSION}, the newest known here; upgrade thresher"
        )
    for name, kind in (("model_type", str), ("layers", int), ("thresholds", list), ("prune", dict)):
        if not isinstance(manifest.get(name), kind):
            raise _damaged(file, name)
    thresholds = [number_from_json(value) for value in manifest["thresholds"]]
    if len(thresholds) != manifest["layers"]:
        raise CheckpointError(f"{file} has {len(thresholds)} thresholds for {manifest['layers']} layers")
    if any(math.isnan(value) for value in thresholds):
        raise CheckpointError(f"{file} has a threshold that is not a number: {manifest['thresholds']}")
    _check_known(file, manifest)
    try:
        PruneConfig.from_dict(manifest["prune"])
        if "rule" in manifest:
            rule_from(manifest["rule"], layers=manifest["layers"])
        if "head" in manifest:
            Head.from_dict(manifest["head"])
    except (ConfigError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    _check_settings(file, manifest["prune"])
    _check_story(file, manifest)
    recipe = manifest.get("recipe")
    return {**manifest, **({"recipe": with_methods_today(recipe)} if isinstance(recipe, dict) else {})}


def dense_threshold(manifest: Mapping[str, Any]) -> float | None:
    """The null threshold of the dense model that a run was made from, which is not the pruned one's: as the run says,
    or as it was measured with; None where nobody knows."""
    if DENSE_THRESHOLD in manifest:
        return float(manifest[DENSE_THRESHOLD])
    try:  # an older run, whose quality nobody has checked
        (metrics, *_) = [found["dense"]["metrics"] for found in manifest["quality"].values()]
        threshold = number_from_json(metrics["null_threshold"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return threshold if math.isfinite(threshold) else None


def number_from_json(value: Any) -> float:
    """A threshold as a number, where it is one or the word for infinity; NaN for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def said(config: PruneConfig) -> dict[str, Any]:
    """What is written of settings: older versions know no others than those that have always been there."""
    settings = {**config.to_dict(), "rejoin": config.rejoined}
    return {name: value for name, value in settings.items() if name not in UNSAID or value != UNSAID[name]}


def _check_known(file: Path, manifest: dict[str, Any]) -> None:
    """A setting that this version has never heard of changes answers, so the run cannot be opened without it."""
    known = {item.name for item in fields(PruneConfig)}
    for name in manifest["prune"]:
        if name not in known:
            raise CheckpointError(
                f"{file} has the unknown setting '{name}', as a newer version than {thresher_version()} writes it"
                f"{_made_by(manifest)}; upgrade thresher"
            )


def _made_by(manifest: dict[str, Any]) -> str:
    try:
        return f" (the run was made by {shown(manifest['provenance']['versions']['thresher'])})"
    except (KeyError, TypeError):  # nothing says it
        return ""


def _check_settings(file: Path, settings: dict[str, Any]) -> None:
    missing = [item.name for item in fields(PruneConfig) if item.name not in {*settings, *UNSAID}]
    if missing:
        raise CheckpointError(
            f"{file} lacks the settings {', '.join(missing)} in 'prune'; every run has them, so the file is damaged"
        )


def _check_story(file: Path, manifest: dict[str, Any]) -> None:
    """What commands read of a run's past. The tables themselves may be missing, or the caller's own words."""
    if not isinstance(manifest.get("base_model"), str | None):
        raise _damaged(file, "base_model")
    if not math.isfinite(number_from_json(manifest.get(DENSE_THRESHOLD, 0.0))):
        raise _damaged(file, DENSE_THRESHOLD)
    recipe, task = manifest.get("recipe"), manifest.get("task")
    if isinstance(recipe, dict):
        length = recipe.get("max_length")
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 4):
            raise _damaged(file, "recipe.max_length")
    if not isinstance(task, dict):
        return
    labels, columns = task.get("labels", []), task.get("columns", {})
    if not isinstance(task.get("name"), str | None):
        raise _damaged(file, "task.name")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise _damaged(file, "task.labels")
    if not isinstance(columns, dict) or not all(isinstance(column, str | None) for column in columns.values()):
        raise _damaged(file, "task.columns")


def _damaged(file: Path, name: str) -> CheckpointError:
    return CheckpointError(f"{file} has no valid '{name}'; the file is damaged")
