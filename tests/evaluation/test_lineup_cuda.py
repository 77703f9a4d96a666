"""The rows of a GPU: who takes part, how they are made, timed and measured; on a stand-in where there is no GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli import tiny
from thresher.core.cost import EncoderShape, dense_macs
from thresher.engine import choose
from thresher.errors import ConfigError
from thresher.evaluation import alone, lineup
from thresher.evaluation.alone import Peak, peak_memory
from thresher.evaluation.contenders import COMPILED, EAGER, UNPADDED, Contender, Spec, Tokens, build
from thresher.evaluation.lineup import Group, Material, line_up, parse_engines, rows_of
from thresher.evaluation.rivals import Row
from thresher.evaluation.speed import race
from thresher.tasks.encode import Encoded

TEXTS = [Tokens([2, *range(5, 5 + words), 3], [0] * (words + 2)) for words in (7, 3, 12)]
OURS = ("thresher dense", "thresher pruned")


def material(folder: Path, **changes: Any) -> Material:
    return replace(
        Material(
            run=folder / "run",
            dense=folder,
            work=folder,
            calibration=TEXTS[:1],
            pad_id=0,
            threads=1,
            texts=TEXTS,
            batch_size=2,
            device="cuda",
        ),
        **changes,
    )


@dataclass
class Workshop:
    """Builds nothing, and remembers what it was asked for and what that ran."""

    made: list[Spec]
    ran: list[tuple[str, int]]
    fails: str = ""

    def build(self, spec: Spec) -> Contender:
        if spec.engine == self.fails:
            raise RuntimeError("BackendCompilerFailed\nno luck")
        self.made.append(spec)

        def run(rows: Sequence[Row]) -> tuple[Any, None]:
            self.ran.append((spec.engine, len(rows)))
            return np.zeros((len(rows), 2), np.float32), None

        return Contender(spec, run)


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    shop = Workshop([], [])
    monkeypatch.setattr(lineup, "build", shop.build)
    monkeypatch.setattr(alone, "build", shop.build)
    monkeypatch.setattr(choose, "gpu_problem", lambda dtype: "")
    monkeypatch.setattr(lineup, "_scales", lambda name, path, material: path / "scales")
    return shop


def test_rows_of_a_gpu_and_their_names() -> None:
    assert parse_engines(None, "cuda") == ("hf", "compile", "unpadded", "thresher")
    with pytest.raises(ConfigError, match="'onnxruntime' is not one of: hf, compile, unpadded, thresher.*device: cuda"):
        parse_engines("onnxruntime", "cuda")
    assert rows_of(parse_engines(None, "cuda"), "cuda", "bf16") == [
        Group(("hugging face",), "fp32"),
        Group((EAGER,), "bf16"),
        Group(("hugging face", "hugging face, sorted"), "bf16"),
        Group((COMPILED,), "bf16"),
        Group((UNPADDED,), "bf16"),
        Group(OURS, "bf16", "graph"),
        Group(OURS, "bf16", "sync"),
        Group(OURS, "fp8", "graph"),
    ]
    assert rows_of(["thresher"], "cuda")[0] == Group(("hugging face",), "fp32")


def test_every_row_is_made_for_the_gpu(workshop: Workshop, tmp_path: Path) -> None:
    contenders, missing = line_up(parse_engines(None, "cuda"), material(tmp_path))
    assert not missing and len(contenders) == 12
    specs = [contender.spec for contender in contenders]
    assert {spec.device for spec in specs} == {"cuda"}
    modes = ("graph", "sync", "graph")
    assert [(spec.engine, spec.mode) for spec in specs[-6:]] == [(n, m) for m in modes for n in OURS]
    assert [spec.dtype for spec in specs] == ["fp32"] + ["fp16"] * 9 + ["fp8"] * 2
    assert [spec.scales is None for spec in specs] == [True] * 10 + [False] * 2
    assert {spec.engine: spec.width for spec in specs if spec.width} == {COMPILED: 14}
    assert {spec.path for spec in specs} == {tmp_path, tmp_path / "run"}
    assert [size for name, size in workshop.ran if name == COMPILED] == [2, 1]  # a batch and a single text


def test_what_does_not_compile_is_missing_with_its_reason(workshop: Workshop, tmp_path: Path) -> None:
    workshop.fails = COMPILED
    contenders, missing = line_up(["compile"], material(tmp_path))
    assert [contender.spec.engine for contender in contenders] == ["hugging face"]
    assert [(row.engine, row.dtype, row.why) for row in missing] == [
        (COMPILED, "fp16", "RuntimeError: BackendCompilerFailed no luck")
    ]


def test_without_kernels_our_rows_are_missing_in_both_modes(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "gpu_problem", lambda dtype: "the GPU kernels need Triton")
    _, missing = line_up(["thresher"], material(tmp_path))
    assert {(row.engine, row.mode) for row in missing} == {(n, m) for m in ("graph", "sync") for n in OURS}
    assert {row.why for row in missing} == {"the GPU kernels need Triton"}


@pytest.mark.parametrize("engine", [EAGER, COMPILED, UNPADDED])
def test_rivals_of_a_gpu_agree_with_hugging_face(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compile_(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def run(**inputs: torch.Tensor) -> Any:
            asked.append({**options, "shape": tuple(inputs["input_ids"].shape)})
            return model(**inputs)

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    dense = tiny.save_model(tmp_path / "dense", tiny.classifier_config())
    expected = build(Spec("hugging face", "fp32", dense, pad_id=0, threads=1))
    rival = build(Spec(engine, "fp32", dense, pad_id=0, threads=1, width=14 if engine == COMPILED else 0))
    for batch in (TEXTS, TEXTS[:1]):
        np.testing.assert_allclose(rival.run(batch)[0], expected.run(batch)[0], atol=1e-4)
    shapes = [{"mode": "reduce-overhead", "dynamic": False, "shape": (rows, 14)} for rows in (3, 1)]
    assert asked == (shapes if engine == COMPILED else [])
    assert expected.attention == "sdpa"
    assert str(rival.attention).startswith({EAGER: "eager", COMPILED: "sdpa"}.get(engine, "SDPA of one text"))


def test_times_are_taken_when_the_gpu_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait before and one after every call that is timed, in batches and alone; the warm-up is not."""
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))

    def run(rows: Sequence[Row]) -> tuple[Any, None]:
        events.append(f"run {len(rows)}")
        return np.zeros((len(rows), 2), np.float32), None

    contender = Contender(Spec("hugging face", "fp16", Path(), pad_id=0, threads=1, device="cuda"), run)
    rows = [Encoded(text.input_ids, text.token_type_ids, 0) for text in TEXTS]
    shape = EncoderShape(layers=2, width=8, ffn_width=16)
    found = race([contender], rows, None, shape=shape, batch_size=2, rounds=1, latency_texts=1)[0]
    timed = ["wait", "run 2", "wait", "wait", "run 1", "wait"]
    assert events == ["run 2", "run 1", *timed, "run 1", "wait", "run 1", "wait"]
    assert (found.batch, found.mode, found.to_dict()["sequences_per_s"]) == (2, None, found.texts_per_s)
    assert 0 < found.ms_p50 < 1000 * len(rows) / found.texts_per_s
    per_text = 2 * float(dense_macs(shape, torch.tensor([9, 5, 14])).sum()) / 3
    assert found.useful_tflops == pytest.approx(per_text * found.texts_per_s / 1e12)


def test_memory_on_a_gpu_is_what_the_row_alone_takes(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated, and reserved; the cache is emptied first, or the row would live on what others left in it."""
    events: list[str] = []
    held = {"memory_allocated": 5, "max_memory_allocated": 12, "memory_reserved": 8, "max_memory_reserved": 40}
    for name, mib in held.items():
        monkeypatch.setattr(torch.cuda, name, lambda mib=mib: mib * 2**20)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append(f"{len(workshop.made)} loaded"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: events.append(f"{len(workshop.ran)} runs"))
    spec = Spec("thresher pruned", "fp16", Path(), pad_id=0, threads=1, device="cuda", mode="graph")
    assert peak_memory(spec, TEXTS, 2) == Peak(peak_mib=7.0, peak_reserved_mib=32.0)
    assert workshop.made == [spec] and events == ["0 loaded", "1 loaded", "0 runs"]
    assert sorted(size for _, size in workshop.ran) == [1, 2]
