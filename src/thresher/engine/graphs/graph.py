"""An ONNX graph under construction: nodes, constants, weights, and the few products that all parts are made of."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from thresher.engine.weights import Affine, Norm
from thresher.errors import ModelError

OPSET = 20  # the first with Gelu
IR_VERSION = 9  # the one of opset 20; a newer one would shut out older runtimes for nothing

Activation = Callable[[Tensor], Tensor]
# What each is in torch, and the operators with their attributes.
ACTIVATIONS: dict[str, tuple[Activation, str, dict[str, Any]]] = {
    "gelu": (F.gelu, "Gelu", {}),
    "gelu_tanh": (lambda values: F.gelu(values, approximate="tanh"), "Gelu", {"approximate": "tanh"}),
    "relu": (F.relu, "Relu", {}),
    "tanh": (torch.tanh, "Tanh", {}),
    "sigmoid": (torch.sigmoid, "Sigmoid", {}),
    "silu": (F.silu, "Sigmoid", {}),  # times what it is given: it has no operator before opset 24
}


class Graph:
    """Values are the names of edges. `half` stores matrices in fp16; they are cast back before they are used."""

    def __init__(self, *, half: bool = False) -> None:
        self.half = half
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._made: dict[Hashable, str] = {}
        self._names: dict[str, int] = {}

    def node(self, kind: str, *inputs: str, name: str | None = None, outputs: int = 0, **attributes: Any) -> Any:
        """The name of what a new node gives; with `outputs`, a list of that many names."""
        from onnx import helper

        own = self._fresh(name or kind)
        given = [own] if not outputs else [f"{own}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, given, name=own, **attributes))
        return given if outputs else own

    def rename_(self, value: str, name: str) -> None:
        """Give an edge another name, in place. With a node that copies it, OpenVINO would show the old one."""
        for node in self.nodes:
            for side in (node.input, node.output):
                side[:] = [name if each == value else each for each in side]

    def whole(self, *values: int) -> str:
        """int64 numbers, one-dimensional."""
        return self._constant(("whole", values), np.array(values, np.int64))

    def one_whole(self, value: int) -> str:
        """An int64 number without dimensions."""
        return self._constant(("one whole", value), np.array(value, np.int64))

    def wholes(self, values: Tensor, *, name: str) -> str:
        """A table of int64 numbers, once for the same numbers."""
        stored = values.cpu().numpy()
        return self._constant((name, stored.tobytes()), stored, name=name)

    def number(self, value: float) -> str:
        """A float32 number without dimensions."""
        return self._constant(("number", value), np.array(value, np.float32))

    def byte(self, value: int) -> str:
        """A uint8 number without dimensions."""
        return self._constant(("byte", value), np.array(value, np.uint8))

    def dequantized(self, codes: Tensor, worth: Tensor, *, name: str) -> str:
        """Whole numbers as what they stand for: (rows, in) int8 codes times their row's worth (rows,)."""
        stored = codes.cpu().numpy()
        parts = (
            self._constant(("codes", name), stored, name=name),
            self.vector(worth, name=f"{name}_scale"),
            self._constant(("zeros", len(stored), stored.dtype.name), np.zeros(len(stored), stored.dtype)),
        )
        if ("dequantized", name) not in self._made:
            self._made["dequantized", name] = self.node("DequantizeLinear", *parts, axis=0)
        return self._made["dequantized", name]

    def affine(self, values: str, affine: Affine, *, name: str, scale: float = 1.0, scaled: int = 0) -> str:
        """(rows, in) -> (rows, out); the first `scaled` outputs are multiplied by `scale`."""
        if scale == 1.0 or not scaled:
            weight, bias = self.matrix(affine.weight, name=f"{name}.weight"), affine.bias.float()
        else:
            factors = torch.ones(len(affine.bias))
            factors[:scaled] = scale
            bias = affine.bias.float() * factors
            if self.half:  # runtimes fold this product of constants when they load the file
                factor = self._constant(("factors", name), factors[:, None].numpy())
                weight = self.node("Mul", self.matrix(affine.weight, name=f"{name}.weight"), factor)
            else:
                weight = self.matrix(affine.weight.float() * factors[:, None], name=f"{name}.weight")
        return str(self.node("Gemm", values, weight, self.vector(bias, name=f"{name}.bias"), transB=1))

    def norm(self, values: str, norm: Norm, *, name: str) -> str:
        """(rows, width), normalised over the width."""
        weight, bias = (self.vector(getattr(norm, part), name=f"{name}.{part}") for part in ("weight", "bias"))
        return str(self.node("LayerNormalization", values, weight, bias, axis=-1, epsilon=float(norm.epsilon)))

    def activation(self, values: str, activation: Activation) -> str:
        name = known_activation(activation)
        _, kind, attributes = ACTIVATIONS[name]
        found = self.node(kind, values, **attributes)
        return str(self.node("Mul", values, found) if name == "silu" else found)

    def rows_of(self, table: Tensor, rows: str, *, name: str) -> str:
        """Rows of an embedding table: (...) -> (..., width). One outside is an error that has the node's name."""
        if not self.half:
            return str(self.node("Gather", self.vector(table, name=f"{name}.weight"), rows, axis=0, name=name))
        stored = self._constant(("table", name), table.detach().cpu().half().numpy(), name=f"{name}.weight")
        return str(self.node("Cast", self.node("Gather", stored, rows, axis=0, name=name), to=1))

    def matrix(self, values: Tensor, *, name: str) -> str:
        """A weight matrix, once under its name."""
        if not self.half:
            return self.vector(values, name=name)
        stored = self._constant(("half", name), values.detach().cpu().half().numpy(), name=name)
        if ("cast", name) not in self._made:
            self._made["cast", name] = self.node("Cast", stored, to=1)
        return self._made["cast", name]

    def vector(self, values: Tensor, *, name: str) -> str:
        """A weight that stays float32, once under its name."""
        return self._constant(("float", name), values.detach().cpu().float().numpy(), name=name)

    def _constant(self, key: Hashable, values: NDArray[Any], *, name: str = "constant") -> str:
        from onnx import numpy_helper

        if key not in self._made:
            self._made[key] = self._fresh(name)
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), self._made[key]))
        return self._made[key]

    def _fresh(self, name: str) -> str:
        """The name itself, or with a number where there is one already."""
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"


def known_activation(activation: Activation) -> str:
    """Its name among ACTIVATIONS: by what it computes, because families name and wrap them in many ways. Some are like
    another until they are cut off, so large values are looked at, too."""
    probe = torch.cat([torch.linspace(-6, 6, 97), torch.linspace(-1000, 1000, 101)])
    found = activation(probe)
    for name, (twin, _, _) in ACTIVATIONS.items():
        if torch.allclose(found, twin(probe), atol=1e-6, rtol=0):
            return name
    given = getattr(activation, "__name__", type(activation).__name__)
    raise ModelError(f"the activation {given} cannot be exported; those that can are: {', '.join(ACTIVATIONS)}")
