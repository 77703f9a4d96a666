"""Tiny models and rows for tests of whole files."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

from tests.cli import kinds, tiny
from tests.models.sentences import cross_encoder_folder, embedder_folder
from thresher.jobs.score import ScoreResult, score_files

TEXTS = [text for text, _ in tiny.sentences(60)]


def make_models(place: Path) -> Path:
    small: Any = {"num_hidden_layers": 1}
    tiny.save_model(place / "classes", tiny.classifier_config(**small))
    several = tiny.classifier_config(("cold", "long", "warm"), problem_type="multi_label_classification", **small)
    tiny.save_model(place / "labels", several)
    tiny.save_model(place / "value", tiny.config(num_labels=1, problem_type="regression", **small))
    cross_encoder_folder(place / "score", sbert_ce_default_activation_function=kinds.LINEAR)
    embedder_folder(place / "embedding")
    return place


def rows(count: int = 50) -> list[dict[str, Any]]:
    return [{"id": f"r{i}", "text": TEXTS[i], "n": i} for i in range(count)]


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    """Rows in the format and packing that the name says."""
    plain = path.with_name(path.name.removesuffix(".gz").removesuffix(".xz").removesuffix(".zst"))
    tiny.write_rows(plain, found)
    return pack(plain, path)


def pack(plain: Path, path: Path) -> Path:
    if path != plain:
        data = plain.read_bytes()
        plain.unlink()
        path.write_bytes(packed(data, path.suffix))
    return path


def packed(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        import pyarrow

        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return bytes(sink.getvalue().to_pybytes())
    return gzip.compress(data) if suffix == ".gz" else lzma.compress(data)


def unpacked(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".xz":
        data = lzma.decompress(data)
    elif path.suffix == ".zst":
        import pyarrow

        data = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd").read()
    return data.decode("utf-8")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in unpacked(path).split("\n") if line]


def score(model: Path, inputs: Any, out: Path, **given: Any) -> ScoreResult:
    """In one arithmetic, so that no timing has a say, and in parts of 7 rows unless told otherwise."""
    return score_files(model, inputs=inputs, out=out, **{"dtype": "fp32", "device": "cpu", "part_rows": 7, **given})
