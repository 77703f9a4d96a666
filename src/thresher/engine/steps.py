"""The file that makes a run a quantized one: static int8 steps of every layer, beside the weights."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from thresher.engine.weights import LayerSteps
from thresher.errors import CheckpointError
from thresher.models.checkpoint import read_manifest

STEPS = "int8_steps.safetensors"
SITES = tuple(field.name for field in fields(LayerSteps))


def write_steps(folder: Path, steps: Sequence[LayerSteps]) -> None:
    save_file({f"{i}.{site}": getattr(layer, site) for i, layer in enumerate(steps) for site in SITES}, folder / STEPS)


def read_steps(run: Path) -> list[LayerSteps]:
    """Every layer's steps; none where the run is not quantized."""
    file = run / STEPS
    if not file.is_file():
        return []
    steps, layers = load_steps(file), read_manifest(run)["layers"]
    if len(steps) != layers:
        raise CheckpointError(f"{file} has steps for {len(steps)} layers, the run has {layers}; quantize the run again")
    return steps


def load_steps(file: Path) -> list[LayerSteps]:
    """A file of steps by itself, with every number checked."""
    try:
        found = load_file(file)
        layers = range(len(found) // len(SITES))
        steps = [LayerSteps(**{site: found[f"{i}.{site}"] for site in SITES}) for i in layers]
    except Exception as error:  # safetensors raises its own kinds; a missing name is a KeyError
        raise CheckpointError(f"{file} is damaged; quantize the run again: {error}") from error
    if len(found) != len(steps) * len(SITES) or not steps:
        raise CheckpointError(f"{file} does not hold whole layers; quantize the run again")
    if not all(value.isfinite().all() and (value > 0).all() for value in found.values()):
        raise CheckpointError(f"{file} has steps that are not positive numbers; quantize the run again")
    widths = {_shape(step) for layer in steps for step in (layer.qkv, layer.attention_output, layer.ffn_in)}
    if len(widths) > 1 or len(widths.pop()) != 1 or any(_shape(layer.ffn_out) for layer in steps):
        raise CheckpointError(f"{file} has steps that do not fit together; quantize the run again")
    return steps


def _shape(step: Tensor) -> tuple[int, ...]:
    return tuple(step.shape)
