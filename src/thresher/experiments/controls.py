"""Controls: dense models trained as long as the pruned ones beside which they stand, and what is lost against them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from thresher.experiments.experiment import Row

CONTROL = "dense"  # the method: trained on with distillation and without pruning
# What makes a control fair, beside task, model and seed: these settings, as the records' commands have them.
AS_LONG = ("finetune_epochs", "soft_epochs", "hard_epochs", "max_steps", "lr", "hard_lr", "batch_size", "max_length")
Place = tuple[Any, ...]
Controls = Mapping[Place, Row]


def settings_in(command: str) -> dict[str, str]:
    """The settings that a recorded command names, those with a flag of their own and those behind --set alike."""
    words = shlex.split(command)
    found = {}
    for flag, value in zip(words, words[1:], strict=False):
        if flag == "--set":
            name, _, said = value.partition("=")
            found[name] = said
        elif flag.startswith("--"):
            found[flag[2:].replace("-", "_")] = value
    return found


def place_of(row: Row) -> Place:
    """What a pruned row and its control have in common: task, model, seed, and how they were trained."""
    said = settings_in(row.get("command", ""))
    return row["task"], row["model"], row["seed"], *(said.get(name) for name in AS_LONG)


def controls_of(rows: Sequence[Row]) -> dict[Place, Row]:
    """The last ones of a place count."""
    return {place_of(row): row for row in rows if row["method"] == CONTROL}


def lost(row: Row, controls: Controls) -> float | None:
    """Share of its control's score that the pruned model lacks; None without a control."""
    control = controls.get(place_of(row))
    return None if control is None else 1 - float(row["pruned"]) / float(control["pruned"])


def lost_net(row: Row, controls: Controls) -> float | None:
    """The same, without what the control had ahead before either was trained on: it may start from another dense model.
    What the control gained over its own start less what the pruned model gained over its own, as a share."""
    control = controls.get(place_of(row))
    if control is None:
        return None
    gained = [float(one["pruned"]) - float(one["dense"]) for one in (control, row)]
    return (gained[0] - gained[1]) / float(control["pruned"])
