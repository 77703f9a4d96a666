"""Our exported graphs as rows of the benchmark: pruned and dense from the same builder, in stock runtimes."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.evaluation.rivals import Row
from thresher.records import write_json

PREFIX = "thresher export"
RUNTIMES = {"onnxruntime": "onnx", "openvino": "xml"}  # and what their files end in
NAMES = {runtime: (f"{PREFIX} dense, {runtime}", f"{PREFIX} pruned, {runtime}") for runtime in RUNTIMES}
PACKAGES = {"onnxruntime": ("onnx", "onnxruntime"), "openvino": ("onnx", "onnxruntime", "openvino")}
ABOUT = "about.json"


def parts_of(engine: str) -> tuple[str, str]:
    """A row's name as dense or pruned, and the runtime."""
    kind, _, runtime = engine.removeprefix(f"{PREFIX} ").partition(", ")
    return kind, runtime


def make_exported(source: Path, folder: Path, kind: str, runtime: str, scales: Path | None) -> None:
    """A folder with two graphs of a run or of a dense folder: for batches, and for single texts."""
    from thresher.engine.graphs.build import Form, build_model
    from thresher.engine.scales import load_scales
    from thresher.engine.weights import read_weights
    from thresher.evaluation.contenders import load_ours
    from thresher.exporting.folder import form_for, takes_types, write_graph, write_openvino
    from thresher.models.heads import head_of
    from thresher.models.plan import plan_of

    model, tokenizer = load_ours(f"thresher {kind}", source)
    weights, plan = read_weights(model), plan_of(model)
    types = takes_types(weights, tokenizer)
    found = load_scales(scales) if scales is not None else []
    write = write_graph if runtime == "onnxruntime" else write_openvino
    folder.mkdir(parents=True)
    for name in ("batch", "one"):
        form = form_for(runtime, Form(types=types, one=name == "one", kept=True), plan)
        graph = build_model(weights, plan, form=form, means=head_of(model).means, scales=found)
        write(graph, folder / f"{name}.{RUNTIMES[runtime]}")
    counts_last = plan.restores or (plan.thresholds[-1] == math.inf and plan.protect == ("first",))
    write_json(folder / ABOUT, {"types": types, "alone": plan.alone, "counts_last": counts_last})


class Exported:
    """What `make_exported` wrote, opened: called with rows, it gives outputs and kept counts.

    Outputs of every token are end to end, without padding.
    """

    def __init__(self, folder: Path, *, threads: int) -> None:
        from thresher.engine.graphs.build import EMBEDDING, LOGITS, SPAN
        from thresher.engine.graphs.opened import open_file

        self.about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        suffix = ".xml" if (folder / "batch.xml").exists() else ".onnx"
        self.graphs = {name: open_file(folder / f"{name}{suffix}", threads=threads) for name in ("batch", "one")}
        there = self.graphs["one"].names
        self.names = next(names for names in (SPAN, (EMBEDDING,), (LOGITS,)) if names[0] in there)

    def __call__(self, rows: Sequence[Row]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        from thresher.engine.graphs.build import KEPT
        from thresher.engine.graphs.opened import padded

        graph = self.graphs["one" if len(rows) == 1 else "batch"]
        texts = [(row.input_ids, row.token_type_ids) for row in rows]
        arrays = padded(texts, types=self.about["types"])
        *found, kept = graph((*self.names, KEPT), arrays)
        outputs = found[0] if len(found) == 1 else np.stack(found, axis=-1)
        return outputs[arrays["attention_mask"] == 1] if outputs.ndim == 3 else outputs, kept
