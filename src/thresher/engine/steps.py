"""The file that makes a run a quantized one: static int8 steps of every layer, beside the weights."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from safetensors.torch import load_file, save_file

from thresher.engine.weights import LayerSteps
from thresher.errors import CheckpointError

STEPS = "int8_steps.safetensors"
SITES = tuple(field.name for field in fields(LayerSteps))


def write_steps(folder: Path, steps: Sequence[LayerSteps]) -> None:
    save_file({f"{i}.{site}": getattr(layer, site) for i, layer in enumerate(steps) for site in SITES}, folder / STEPS)


def read_steps(folder: Path) -> list[LayerSteps]:
    """Every layer's steps; none where the run is not quantized."""
    file = folder / STEPS
    if not file.is_file():
        return []
    try:
        found = load_file(file)
        layers = range(len(found) // len(SITES))
        steps = [LayerSteps(**{site: found[f"{i}.{site}"] for site in SITES}) for i in layers]
    except Exception as error:  # safetensors raises its own kinds; a missing name is a KeyError
        raise CheckpointError(f"{file} is damaged; quantize the run again: {error}") from error
    if not all(bool((value > 0).all() and value.isfinite().all()) for value in found.values()):
        raise CheckpointError(f"{file} has steps that are not positive numbers; quantize the run again")
    if len(found) != len(steps) * len(SITES) or not steps:
        raise CheckpointError(f"{file} does not hold whole layers; quantize the run again")
    return steps
