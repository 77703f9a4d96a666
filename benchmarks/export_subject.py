"""A run as every contender of export.py and export_text.py: the files it is made into, and texts for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from export_turns import Spec
from fitted_run import read_texts

from thresher.engine.find_scales import find_scales
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.scales import SCALES, load_scales, scales_file, write_scales
from thresher.engine.weights import LayerScales, read_weights
from thresher.evaluation.lineup import dense_of
from thresher.evaluation.rivals import Arrays, make_onnx, make_onnx_int8, make_openvino, make_openvino_int8
from thresher.exporting.folder import form_for, takes_types, write_graph, write_openvino
from thresher.models.checkpoint import load
from thresher.models.heads import head_of
from thresher.models.plan import PruningPlan, plan_of

CALIBRATION = 64  # texts
TEXTS = 8  # batches of a length: what is kept differs from text to text
SUFFIX = {"onnxruntime": "onnx", "openvino": "xml"}
NAMES = ("input_ids", "attention_mask", "token_type_ids")


@dataclass
class Subject:
    """A run, texts for it, and the folder in which its files are made."""

    run: Path
    texts: Path
    work: Path
    threads: int

    def __post_init__(self) -> None:
        self.checkpoint = load(self.run)
        model = self.checkpoint.model
        if head_of(model).means == "embedding":
            raise SystemExit(f"{self.run} is an embedder; the stock export to compare with is that of a classifier")
        self.weights, self.plan = read_weights(model), plan_of(model)
        self.types = takes_types(self.weights, self.checkpoint.tokenizer)
        self.work.mkdir(parents=True, exist_ok=True)

    @property
    def trained(self) -> bool:
        return "fitted" not in self.checkpoint.manifest

    @cached_property
    def read(self) -> list[tuple[str, str | None]]:
        return read_texts(self.texts, 2048)

    def single(self, count: int) -> list[Arrays]:
        """The file's first texts, each by itself and as long as it is."""
        return [self._arrays([pair], self.weights.positions) for pair in self.read[:count]]

    def batches(self, *, batch: int, tokens: int, count: int = TEXTS) -> list[Arrays]:
        """Of texts with just so many tokens: behind each, or behind its pair, stand those that follow in the file."""
        size, found = min(tokens, self.weights.positions), []
        for number in range(count):
            places = range(number * batch, (number + 1) * batch)
            found.append(self._arrays([self._long(place, size) for place in places], size))
            if found[-1]["attention_mask"].sum() < batch * size:
                raise SystemExit(f"{self.texts} has texts without words: they do not fill {size} tokens")
        return found

    def _long(self, place: int, size: int) -> tuple[str, str | None]:
        start = place % len(self.read)
        behind = list(islice(cycle(self.read), start, start + size))
        if behind[0][1] is None:
            return " ".join(text for text, _ in behind), None
        return behind[0][0], " ".join(pair or "" for _, pair in behind)

    def _arrays(self, texts: Sequence[tuple[str, str | None]], limit: int) -> Arrays:
        tokenizer: Any = self.checkpoint.tokenizer
        rows = [tokenizer(text, pair, truncation=True, max_length=limit) for text, pair in texts]
        found = {name: np.array([row[name] for row in rows], np.int64) for name in NAMES if name in rows[0]}
        if not self.types:
            found.pop(NAMES[2], None)
        elif NAMES[2] not in found:
            found[NAMES[2]] = np.zeros_like(found[NAMES[0]])
        return found

    @cached_property
    def scales_file(self) -> Path:
        """The run's own scales, or if it has none, some found on the texts."""
        own = scales_file(self.run)
        if own is not None:
            return own
        if not (self.work / SCALES).exists():
            rows = self.single(CALIBRATION)
            types = [row[NAMES[2]][0].tolist() if self.types else None for row in rows]
            texts = [(row[NAMES[0]][0].tolist(), kinds) for row, kinds in zip(rows, types, strict=True)]
            write_scales(self.work, find_scales(self.checkpoint.model, texts))
        return self.work / SCALES

    @cached_property
    def scales(self) -> list[LayerScales]:
        return load_scales(self.scales_file)

    def stock(self, runtime: str, dtype: str) -> Path:
        """The Hugging Face model as the runtime's users export it."""
        dense = dense_of(self.run, self.checkpoint).folder
        fp32, int8 = (self.work / f"stock-{runtime}-{name}.{SUFFIX[runtime]}" for name in ("fp32", "int8"))
        if not fp32.exists():
            make = make_onnx if runtime == "onnxruntime" else make_openvino
            make(dense, fp32, self.batches(batch=2, tokens=16)[0])
        if dtype == "int8" and not int8.exists():
            if runtime == "onnxruntime":
                make_onnx_int8(fp32, int8)
            else:
                make_openvino_int8(fp32, int8, self.single(CALIBRATION))
        return int8 if dtype == "int8" else fp32

    def ours(self, kind: str, runtime: str, dtype: str, *, one: bool) -> Path:
        """Our graph: pruned, dense, or plain, which is pruned without idle rows."""
        file = self.work / f"{kind}-{runtime}-{dtype}-{'one' if one else 'batch'}.{SUFFIX[runtime]}"
        if not file.exists():
            plan = PruningPlan.dense(self.plan.layers, reads=self.plan.reads) if kind == "dense" else self.plan
            form = Form(types=self.types, one=one, kept=True)
            form = form if kind == "plain" else form_for(runtime, form, plan)
            scales = self.scales if dtype == "int8" else []
            write = write_graph if runtime == "onnxruntime" else write_openvino
            write(build_model(self.weights, plan, form=form, scales=scales), file)
        return file

    def graph(self, kind: str, runtime: str, dtype: str, *, one: bool = True) -> Spec:
        """stock, pruned, plain or dense as a contender."""
        file = self.stock(runtime, dtype) if kind == "stock" else self.ours(kind, runtime, dtype, one=one)
        return {"file": str(file), "threads": self.threads}

    def engine(self, backend: str, dtype: str) -> Spec:
        """Our engine as a contender; int8 is int8-static."""
        scales = str(self.scales_file) if dtype == "int8" else None
        name = "int8-static" if dtype == "int8" else dtype
        run = {"run": str(self.run), "backend": backend, "dtype": name, "scales": scales}
        return {**run, "threads": self.threads}

    def contenders(self, runtime: str, dtype: str, *, one: bool) -> dict[str, Spec]:
        found = {kind: self.graph(kind, runtime, dtype, one=one) for kind in ("stock", "pruned", "dense")}
        if one and runtime == "onnxruntime":
            found |= {f"engine {backend}": self.engine(backend, dtype) for backend in ("cpu", "onnx")}
        if one and runtime == "openvino":
            found["plain"] = self.graph("plain", runtime, dtype)
        return found
