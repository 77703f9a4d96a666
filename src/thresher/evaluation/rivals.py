"""The stacks people deploy on a processor today, made from the dense fine-tuned model: onnxruntime and OpenVINO.

Making a file needs torch and the converters; running one needs only its runtime. Nothing is imported before it is
needed, so a process that runs a rival holds the rival and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.int64]]
Forward = Callable[[Arrays], NDArray[np.float32]]  # padded inputs (batch, length) -> logits (batch, outputs)

# What each row needs: to make its file, and to run it.
NEEDS = {
    ("onnxruntime", "fp32"): ("onnx", "onnxscript", "onnxruntime"),
    ("onnxruntime", "int8"): ("onnx", "onnxscript", "onnxruntime"),
    ("openvino", "fp32"): ("openvino",),
    ("openvino", "bf16"): ("openvino",),
    ("openvino", "int8"): ("openvino", "nncf"),
}


class Row(Protocol):
    """One tokenized text, without padding."""

    @property
    def input_ids(self) -> list[int]: ...
    @property
    def token_type_ids(self) -> list[int] | None: ...


def missing_package(engine: str, dtype: str) -> str | None:
    """The first package this row needs that is not installed."""
    return next((name for name in NEEDS[(engine, dtype)] if find_spec(name) is None), None)


def padded(rows: Sequence[Row], pad_id: int, *, width: int = 0) -> Arrays:
    """Arrays of shape `(batch, length)`, padded on the right to the longest row, or further to `width`; the same code
    for every padded row."""
    shape = (len(rows), max(width, *(len(row.input_ids) for row in rows)))
    ids, mask, types = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for i, row in enumerate(rows):
        length = len(row.input_ids)
        ids[i, :length] = row.input_ids
        mask[i, :length] = 1
        if row.token_type_ids is not None:
            types[i, :length] = row.token_type_ids
    batch = {"input_ids": ids, "attention_mask": mask}
    return batch if rows[0].token_type_ids is None else {**batch, "token_type_ids": types}


def make_onnx(dense: Path, file: Path, example: Arrays) -> None:
    """The model with batch and length left open. `example` needs at least two rows: a size of 1 would be fixed."""
    import torch

    model, inputs = _for_export(dense, example)
    torch.onnx.export(
        model,
        (),
        str(file),
        kwargs=inputs,
        input_names=list(inputs),
        output_names=["logits"],
        dynamic_shapes={name: dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC) for name in inputs},
        dynamo=True,
        verbose=False,
    )


def make_onnx_int8(fp32: Path, file: Path) -> None:
    """Dynamic quantization as onnxruntime's users do it: int8 weights per output channel, activations as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(fp32))
    # The quantizer infers the shapes again, and fails on the exporter's names for them.
    del model.graph.value_info[:]
    quantize_dynamic(model, str(file), per_channel=True, weight_type=QuantType.QInt8)


def make_openvino(dense: Path, file: Path, example: Arrays) -> None:
    """Converted from torch itself, 5 to 10% faster than by way of ONNX; all weights stay in 32 bits."""
    import openvino

    model, inputs = _for_export(dense, example)
    openvino.save_model(openvino.convert_model(model, example_input=inputs), file, compress_to_fp16=False)


def make_openvino_int8(fp32: Path, file: Path, calibration: Sequence[Arrays]) -> None:
    """NNCF's post-training quantization for transformers (static activations, smooth quantization)."""
    import nncf
    import openvino

    model = openvino.Core().read_model(fp32)
    quantized = nncf.quantize(
        model, nncf.Dataset(calibration), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(calibration)
    )
    openvino.save_model(quantized, file, compress_to_fp16=False)


def open_onnxruntime(file: Path, *, threads: int) -> Forward:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors; it warns about every constant that it folds
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(["logits"], inputs)[0]


def open_openvino(file: Path, *, precision: str, threads: int) -> Forward:
    """`precision`, f32 or bf16, is always said: left to itself the plugin takes bf16 wherever it is native."""
    import openvino

    settings: Mapping[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,  # one batch at a time on all threads, like every other row
    }
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return lambda inputs: np.asarray(compiled(inputs)[0], dtype=np.float32)


def _for_export(dense: Path, example: Arrays) -> tuple[Any, dict[str, Any]]:
    """The model with plain attention: torch's fused one exports with NaN guards that cost onnxruntime 10%."""
    import torch

    from thresher.models.checkpoint import load_dense

    model = load_dense(dense, whole=True)[0].eval()
    model.set_attn_implementation("eager")
    return model, {name: torch.from_numpy(value) for name, value in example.items()}
