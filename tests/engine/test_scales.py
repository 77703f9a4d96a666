"""The file of static int8 scales: read back as written, and every damage told."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.families import LAYERS, WIDTH, pruned_model
from tests.words import word_tokenizer
from thresher.engine.engine import Engine
from thresher.engine.scales import SCALES, SITES, load_scales, read_scales, scales_file, write_scales
from thresher.engine.weights import LayerScales
from thresher.errors import CheckpointError, ConfigError
from thresher.models.checkpoint import save


def made(layers: int = LAYERS) -> list[LayerScales]:
    vectors = (torch.rand(WIDTH) + 0.1 for _ in range(3 * layers))
    return [LayerScales(next(vectors), next(vectors), next(vectors), torch.tensor(0.5 + i)) for i in range(layers)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    words = word_tokenizer(tuple("abcdefgh"), model_max_length=32)
    save(pruned_model("bert").float(), words, tmp_path / "run")
    return tmp_path / "run"


def test_scales_are_read_back_as_written(run: Path) -> None:
    assert read_scales(run) == []
    scales = made()
    write_scales(run, scales)
    for ours, theirs in zip(read_scales(run), scales, strict=True):
        assert all(torch.equal(getattr(ours, site), getattr(theirs, site)) for site in SITES)


@pytest.mark.parametrize("block", [None, [1], {"quality": []}, {"quality": {"fp32": {}, "int8-static": {}}}])
def test_fp8_needs_its_quality(run: Path, block: object) -> None:
    """Runs that were quantized when nobody measured it are told so; the rest of what they can stays."""
    write_scales(run, made())
    manifest = json.loads((run / "thresher.json").read_text(encoding="utf-8"))
    (run / "thresher.json").write_text(json.dumps({**manifest, "quantization": block}), encoding="utf-8")
    with pytest.raises(ConfigError, match="was quantized when fp8 was not measured yet; quantize the run"):
        read_scales(run, "fp8")
    assert len(read_scales(run, "int8-static")) == LAYERS
    block = {"quality": {"fp8": {"metrics": {"score": 0.5}}}}
    (run / "thresher.json").write_text(json.dumps({**manifest, "quantization": block}), encoding="utf-8")
    assert len(read_scales(run, "fp8")) == LAYERS


@pytest.mark.parametrize("layers", [LAYERS - 1, LAYERS + 2])
def test_scales_of_another_model_are_refused(run: Path, layers: int) -> None:
    write_scales(run, made(layers))
    says = f"has scales for {layers} layers, the run has {LAYERS}; quantize the run again"
    with pytest.raises(CheckpointError, match=says):
        read_scales(run)
    with pytest.raises(CheckpointError, match=says):
        Engine.load(run)


def test_scales_in_a_folder_that_is_no_run_are_refused(tmp_path: Path) -> None:
    write_scales(tmp_path, made())
    with pytest.raises(CheckpointError, match="not a thresher run"):
        read_scales(tmp_path)
    assert len(load_scales(tmp_path / SCALES)) == LAYERS


def put(name: str, value: Tensor | None) -> Callable[[dict[str, Tensor]], None]:
    def change(found: dict[str, Tensor]) -> None:
        del found[name]
        if value is not None:
            found[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("1.qkv", None), "damaged; quantize the run again"),
        (put(f"{LAYERS - 1}.ffn_out", None), "whole layers"),
        (lambda found: found.clear(), "whole layers"),
        (put("0.ffn_in", torch.zeros(WIDTH)), "not positive numbers"),
        (put("0.ffn_out", torch.tensor(-1.0)), "not positive numbers"),
        (put("2.qkv", torch.full((WIDTH,), math.nan)), "not positive numbers"),
        (put("2.qkv", torch.full((WIDTH,), math.inf)), "not positive numbers"),
        (put("2.qkv", torch.ones(WIDTH + 1)), "do not fit together"),
        (put("2.qkv", torch.tensor(1.0)), "do not fit together"),
        (put("2.ffn_out", torch.ones(3)), "do not fit together"),
    ],
)
def test_damage_is_told(run: Path, change: Callable[[dict[str, Tensor]], None], says: str) -> None:
    write_scales(run, made())
    found = load_file(run / SCALES)
    change(found)
    save_file(found, run / SCALES)
    with pytest.raises(CheckpointError, match=says):
        read_scales(run)


@pytest.mark.parametrize("content", [b"", b"half a file", b"\xff" * 100])
def test_a_file_that_is_no_safetensors_is_told(run: Path, content: bytes) -> None:
    (run / SCALES).write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged; quantize the run again"):
        read_scales(run)


def test_a_run_of_a_newer_format_is_refused_before_its_steps_are_used(run: Path) -> None:
    write_scales(run, made())
    manifest = json.loads((run / "thresher.json").read_text(encoding="utf-8"))
    (run / "thresher.json").write_text(json.dumps({**manifest, "format_version": 99}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="format version 99"):
        Engine.load(run)


def test_runs_with_the_older_name_still_load(run: Path) -> None:
    """They are as quantized as others; of two files the newer name counts."""
    assert scales_file(run) is None
    scales = made()
    write_scales(run, scales)
    (run / SCALES).rename(run / "int8_steps.safetensors")
    assert scales_file(run) == run / "int8_steps.safetensors"
    for ours, theirs in zip(read_scales(run), scales, strict=True):
        assert all(torch.equal(getattr(ours, site), getattr(theirs, site)) for site in SITES)
    write_scales(run, made())
    assert scales_file(run) == run / SCALES
