"""What all experiments lack, in one call: one pool of places and one work folder, the most important rows first.

A table [all] in an experiment's config.toml says how it takes part: `data`, the folder under --data that has its rows;
`places`, how many a row of it takes; `only`, which of its rows may be measured beside others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thresher.errors import ConfigError
from thresher.experiments.experiment import Experiment, Key, Row, Setting, experiment_named
from thresher.experiments.plan import ORDER, by_importance
from thresher.experiments.runner import (
    COMMAND,
    CONFIG,
    Part,
    Progress,
    chosen_keys,
    join,
    matching,
    part_of,
    publish_recorded,
    read_config,
    run_together,
)

Trouble = Callable[[str, Exception], None]  # told what is wrong with an experiment, by its name


def parts_of(
    folder: Path, setting: Setting, *, only: Mapping[str, Sequence[str]], device: str, on_trouble: Trouble
) -> list[Part]:
    """The experiments of the plan, and any other that lacks rows, in its order; of those whose rows do not have what
    `only` names, nothing is missing."""
    found: list[tuple[Experiment, Path, Setting, list[Key]]] = []
    places = [folder / name for name in by_importance()]
    there = [place for place in places if (place / CONFIG).is_file()]
    for place in there or places[:1]:  # where there is none, the first says what is wrong
        experiment, config = experiment_named(place.name), read_config(place)
        own = config.get("all", {})
        given = replace(
            setting,
            config=config,
            data=None if setting.data is None else setting.data / own.get("data", ""),
            weight=own.get("places", 1),
        )
        found.append((experiment, place, given, chosen_keys(experiment.keys(config), own.get("only", {}))))
    chosen_keys([key for *_, keys in found for key in keys], only)  # refuses what none of them has
    parts = []
    for experiment, place, given, keys in found:
        command = COMMAND.format(place.name)
        try:
            part = part_of(experiment, place, given, matching(keys, only), command=command, device=device)
        except Exception as error:  # of any kind: the other experiments are not to be lost for it
            on_trouble(place.name, error)
            continue
        if part.missing or place.name in ORDER:
            parts.append(part)
    return parts


def measure_all(
    parts: Sequence[Part],
    *,
    parallel: int,
    keep: bool,
    on_row: Callable[[Part, Key, Row], None],
    on_failure: Callable[[Part, Key, Exception], None],
    on_trouble: Trouble,
) -> list[Progress]:
    """As `run_together`; an experiment that cannot be measured here is left out."""
    able = []
    for part in parts:
        try:
            if lacking := absent(part):
                raise ConfigError(f"left out, as these are not there: {', '.join(map(str, lacking))}")
            if part.missing:
                part.experiment.check(part.setting)
            able.append(part)
        except Exception as error:
            on_trouble(part.folder.name, error)
    made = run_together(able, parallel=parallel, keep=keep, on_row=on_row, on_failure=on_failure)
    for part in parts:  # also of those without a new row: one may take numbers from another's
        try:
            join(part.experiment, part.folder, part.setting.config)
        except Exception as error:
            on_trouble(part.folder.name, error)
    progress = dict(zip(able, made, strict=True))
    return [progress.get(part) or Progress(0, part.recorded, len(part.missing)) for part in parts]


def absent(part: Part) -> list[Path]:
    """The folders of models and data that missing rows need and that are not there. Which data a row needs an
    experiment says in its function `folders`, if it is not the folder of its task."""
    folders: Callable[[Key, dict[str, Any]], list[str]]
    folders = getattr(part.experiment, "folders", lambda key, config: [key["task"]])
    needed = [part.setting.model(key["model"]) for key in part.missing if "model" in key]
    if part.setting.data is not None:
        needed += [part.setting.data / name for key in part.missing for name in folders(key, part.setting.config)]
    return [place for place in dict.fromkeys(needed) if not place.is_dir()]


def publish_all(parts: Sequence[Part], *, on_trouble: Trouble) -> list[Path]:
    """Every part's tables and figures, when all have their rows: some draw also what others measured."""
    written = []
    for part in parts:
        try:
            written += publish_recorded(part.experiment, part.folder, part.setting.config)
        except Exception as error:
            on_trouble(part.folder.name, error)
    return written
