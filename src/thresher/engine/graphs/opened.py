"""An exported file in a stock runtime, as whoever deploys it opens it: onnxruntime, or OpenVINO for .xml files."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thresher.errors import ConfigError

NEEDS = ("onnx", "onnxruntime")
Arrays = dict[str, NDArray[Any]]


class Opened(Protocol):
    """A loaded graph. `names`: of its outputs."""

    names: tuple[str, ...]

    def __call__(self, names: Sequence[str], arrays: Arrays) -> list[NDArray[Any]]:
        """The named outputs for (batch, length) inputs."""


class OnnxFile:
    def __init__(self, model: str | bytes, *, threads: int) -> None:
        """`model`: a file's name, or a graph's bytes."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # what goes wrong comes as an exception
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.names = tuple(output.name for output in self.session.get_outputs())

    def __call__(self, names: Sequence[str], arrays: Arrays) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = self.session.run(list(names), arrays)
        return found


class OpenVinoFile:
    """Computed in f32: left to itself the plugin takes bf16 wherever that is native, and then drops other tokens."""

    def __init__(self, file: Path, *, threads: int) -> None:
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        self.compiled = openvino.Core().compile_model(file, "CPU", settings)
        self.names = tuple(output.get_any_name() for output in self.compiled.outputs)

    def __call__(self, names: Sequence[str], arrays: Arrays) -> list[NDArray[Any]]:
        found = self.compiled(arrays)
        # Outputs are views of memory that the next request writes to.
        return [np.array(found[self.compiled.output(name)]) for name in names]


def check_packages(*names: str, who: str) -> None:
    """Say at once which package is missing."""
    for name in names or NEEDS:
        if find_spec(name) is None:
            extra = "export" if name in NEEDS else "bench"
            raise ConfigError(
                f"the package {name} is not installed, and {who} needs it; pip install 'thresher[{extra}]'"
            )


def open_file(file: Path, *, threads: int) -> Opened:
    return OpenVinoFile(file, threads=threads) if file.suffix == ".xml" else OnnxFile(str(file), threads=threads)


def padded(texts: Sequence[tuple[Any, Any]], *, types: bool, extra: int = 0, left: bool = False) -> Arrays:
    """(batch, length) arrays of token ids and their types. What stands in the padding is nobody's business."""
    shape = (len(texts), max(len(ids) for ids, _ in texts) + extra)
    arrays = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for row, (ids, kinds) in enumerate(texts):
        place = slice(shape[1] - len(ids), None) if left else slice(0, len(ids))
        arrays["input_ids"][row, place], arrays["attention_mask"][row, place] = ids, 1
        if kinds is not None:
            arrays["token_type_ids"][row, place] = kinds
    if not types:
        del arrays["token_type_ids"]
    return arrays
