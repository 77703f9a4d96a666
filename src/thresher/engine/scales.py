"""The file that makes a run a quantized one: static scales of every layer, for int8 and fp8, beside the weights."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from thresher.engine.arithmetic import FP8, STATIC
from thresher.engine.weights import LayerScales
from thresher.errors import CheckpointError, ConfigError
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


def read_scales(run: Path, dtype: str = "auto") -> list[LayerScales]:
    """Every layer's scales; none where the run is not quantized. What is asked for is refused where its quality was not
    measured, and never chosen: scales whose int8 was not measured are those of a run that is not quantized."""
    file = scales_file(run)
    if file is None:
        return []
    scales, manifest = load_scales(file), read_manifest(run)
    if len(scales) != manifest["layers"]:
        found = f"{file} has scales for {len(scales)} layers, the run has {manifest['layers']}"
        raise CheckpointError(f"{found}; quantize the run again")
    if dtype == FP8 and FP8 not in quality_of(manifest):
        raise ConfigError(
            f"{run} was quantized when fp8 was not measured yet; quantize the run that it was made from once more, or "
            "use dtype = 'fp16'"
        )
    if STATIC in not_measured(manifest):
        if dtype == STATIC:
            raise ConfigError(
                f"{run} was quantized on a processor without int8, so nobody knows what it loses; quantize the run "
                "that it was made from on this one, or use dtype = 'fp32'"
            )
        return [] if dtype == "auto" else scales
    return scales


def not_measured(manifest: dict[str, Any]) -> dict[str, Any]:
    """What `thresher quantize` could not measure of a run, and why."""
    block = manifest.get("quantization")
    found = block.get("not_measured") if isinstance(block, dict) else None
    return found if isinstance(found, dict) else {}


def quality_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """What `thresher quantize` measured of a run; nothing where it says nothing that can be read."""
    block = manifest.get("quantization")
    quality = block.get("quality") if isinstance(block, dict) else None
    return quality if isinstance(quality, dict) else {}


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
