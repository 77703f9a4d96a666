"""What is to be said where a pruned model scores more than the dense one that it was made from."""

from collections.abc import Mapping
from typing import Any

CONTROL = "dense"  # the method that trains on without pruning


def gain_notes(quality: Mapping[str, Mapping[str, Mapping[str, Any]]], recipe: Any) -> list[str]:
    """A line for every split on which pruned is ahead. quality: split -> "dense" and "pruned" -> Quality.to_dict().

    `recipe` is the run's: nothing is said of one that trained no weights, nor of the control itself.
    """
    method = recipe.get("method") if isinstance(recipe, dict) else None
    if method in (None, CONTROL):
        return []
    found = []
    for split, models in quality.items():
        if "dense" not in models:
            continue
        gain = round(100 * (models["pruned"]["metrics"]["score"] - models["dense"]["metrics"]["score"]), 2)
        if gain > 0:
            found.append(
                f"{split}: pruned scores {gain:.2f} points more than dense, but it was trained longer; dropping tokens "
                f"need not be why. The fair control is the dense model trained as long: --method {CONTROL}"
            )
    return found
