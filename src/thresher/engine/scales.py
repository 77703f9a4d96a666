"""The file that makes a run a quantized one: static int8 scales of every layer, beside the weights."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from thresher.engine.weights import LayerScales
from thresher.errors import CheckpointError
from thresher.models.checkpoint import read_manifest

SCALES = "int8_scales.safetensors"
NAMES = (SCALES, "int8_steps.safetensors")  # older runs have the second
SITES = tuple(field.name for field in fields(LayerScales))


def write_scales(folder: Path, scales: Sequence[LayerScales]) -> None:
    values = {f"{i}.{site}": getattr(layer, site) for i, layer in enumerate(scales) for site in SITES}
    save_file(values, folder / SCALES)


def scales_file(run: Path) -> Path | None:
    """The file of a quantized run; None where the run is not quantized."""
    return next((run / name for name in NAMES if (run / name).is_file()), None)


def read_scales(run: Path) -> list[LayerScales]:
    """Every layer's scales; none where the run is not quantized."""
    file = scales_file(run)
    if file is None:
        return []
    scales, layers = load_scales(file), read_manifest(run)["layers"]
    if len(scales) != layers:
        found = f"{file} has scales for {len(scales)} layers, the run has {layers}"
        raise CheckpointError(f"{found}; quantize the run again")
    return scales


def load_scales(file: Path) -> list[LayerScales]:
    """A file of scales by itself, with every number checked."""
    try:
        found = load_file(file)
        layers = range(len(found) // len(SITES))
        scales = [LayerScales(**{site: found[f"{i}.{site}"] for site in SITES}) for i in layers]
    except Exception as error:  # safetensors raises its own kinds; a missing name is a KeyError
        raise CheckpointError(f"{file} is damaged; quantize the run again: {error}") from error
    if len(found) != len(scales) * len(SITES) or not scales:
        raise CheckpointError(f"{file} does not hold whole layers; quantize the run again")
    if not all(value.isfinite().all() and (value > 0).all() for value in found.values()):
        raise CheckpointError(f"{file} has scales that are not positive numbers; quantize the run again")
    widths = {_shape(scale) for layer in scales for scale in (layer.qkv, layer.attention_output, layer.ffn_in)}
    if len(widths) > 1 or len(widths.pop()) != 1 or any(_shape(layer.ffn_out) for layer in scales):
        raise CheckpointError(f"{file} has scales that do not fit together; quantize the run again")
    return scales


def _shape(scale: Tensor) -> tuple[int, ...]:
    return tuple(scale.shape)
