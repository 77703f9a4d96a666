"""What is written: the graph where runtimes look for it, and beside it what they need to read texts."""

from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.graphs.build import Form, steps_fit
from thresher.engine.graphs.opened import NEEDS
from thresher.engine.weights import Weights
from thresher.errors import ModelError
from thresher.models.embedder import Embedder
from thresher.models.stored import write_folder

# Where optimum and transformers.js look for them.
MODEL = Path("onnx") / "model.onnx"
INT8_MODEL = Path("onnx") / "model_quantized.onnx"
OPENVINO_MODEL = Path("openvino_model.xml")
FORMATS = ("onnx", "openvino")
ABOUT = "thresher_export.json"  # not thresher.json: an exported folder is no run
LARGEST = 1_900_000_000  # bytes of one protobuf file, a little below its limit
STEP = 8  # see `form_for`


def needs(form: str) -> tuple[str, ...]:
    """The packages that a format needs."""
    return (*NEEDS, "openvino") if form == "openvino" else NEEDS


def form_for(runtime: str, form: Form, plan: PruningPlan) -> Form:
    """The form as a runtime computes it soonest, with the same outputs: OpenVINO prepares itself for every new shape,
    so what single texts keep is filled up to multiples of STEP there."""
    fits = form.one and steps_fit(plan, form) and any(value > 0 for value in plan.thresholds[: plan.alone])
    return replace(form, step=STEP) if runtime == "openvino" and fits else form


def place_of(form: str, *, int8: bool) -> Path:
    """The graph's file inside the folder."""
    if form == "openvino":
        return OPENVINO_MODEL
    return INT8_MODEL if int8 else MODEL


def write_openvino(model: Any, file: Path) -> None:
    """The same graph, read and written by OpenVINO; all weights stay as they are."""
    import openvino

    whole = file.with_suffix(".onnx")
    write_graph(model, whole)
    # What convert_model does with a file, but for taking a comma in its name for the end of it.
    openvino.save_model(openvino.Core().read_model(whole), file, compress_to_fp16=False)
    for left in file.parent.glob(f"{whole.name}*"):
        left.unlink()


def write_graph(model: Any, file: Path, *, largest: int = LARGEST) -> None:
    """Write and check a graph; weights above `largest` bytes go into a file of their own, as runtimes expect it."""
    import onnx

    file.parent.mkdir(parents=True, exist_ok=True)
    if model.ByteSize() > largest:
        onnx.save(model, str(file), save_as_external_data=True, location=f"{file.name}_data", size_threshold=1024)
    else:
        onnx.save(model, str(file))
    onnx.checker.check_model(str(file), full_check=True)


def write_beside(folder: Path, model: Any, tokenizer: Any, *, max_length: int) -> None:
    """config.json and the tokenizer, which truncates where the engine does; modules.json of an embedder."""
    model.config.save_pretrained(folder)
    own = deepcopy(tokenizer)
    own.model_max_length = max_length
    own.save_pretrained(folder)
    if isinstance(model, Embedder):
        write_folder(folder, replace(model.stored, max_length=max_length), width=model.config.hidden_size)


def takes_types(weights: Weights, tokenizer: Any) -> bool:
    """Whether the graph has the input token_type_ids: where there are several types, and the tokenizer gives them."""
    several = weights.token_type is not None and len(weights.token_type) > 1
    return several and "token_type_ids" in tokenizer.model_input_names


def rounded(weights: Weights) -> Weights:
    """What a file with fp16 matrices computes with: they are rounded, and vectors and the distance bias are not."""
    seen: dict[int, Any] = {}

    def convert(part: Any) -> Any:
        if isinstance(part, Tensor):
            return _half(part) if part.dim() > 1 else part
        if isinstance(part, list):
            return [convert(item) for item in part]
        if is_dataclass(part) and not isinstance(part, type):
            if id(part) not in seen:  # a layer that several passes share stays one
                names = [item.name for item in fields(part) if item.name != "distance_bias"]
                seen[id(part)] = replace(part, **{name: convert(getattr(part, name)) for name in names})
            return seen[id(part)]
        return part

    result: Weights = convert(weights)
    return result


def _half(matrix: Tensor) -> Tensor:
    found = matrix.to(torch.float16).to(torch.float32)
    if not bool(found.isfinite().all()):
        largest = float(matrix.abs().max())
        raise ModelError(f"a weight of {largest:.3g} is beyond fp16, which ends at 65,504; leave out --fp16-weights")
    return found
