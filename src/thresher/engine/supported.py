"""Which features of layers each way of computing knows: what executors check and `thresher doctor --families` shows."""

from collections.abc import Iterable

from thresher.core.layer import (
    BERT_LIKE,
    CONVOLUTION,
    GATED,
    POSITION_NAMES,
    PRE_NORM,
    WINDOW,
    LayerSpec,
    check_features,
)

ALL = BERT_LIKE | {PRE_NORM, GATED, WINDOW, CONVOLUTION, *POSITION_NAMES.values()}

# way of computing -> what it knows, and what to take for the rest
WAYS: dict[str, tuple[frozenset[str], str]] = {
    "reference": (ALL, ""),
    "cpu": (ALL, "use backend = 'reference'"),
    "cuda": (ALL, "use device = 'cpu', or backend = 'reference' with device = 'cuda'"),
    "export": (ALL, "run it with the engine on a CPU"),
    "unpadded rival": (
        ALL - {POSITION_NAMES["disentangled"], CONVOLUTION},
        "measure against the padded model",
    ),
}
NAMES = {
    "cpu": "the cpu backend",
    "cuda": "the cuda backend",
    "export": "the ONNX export",
    "unpadded rival": "the unpadded rival",
}


def check_supported(way: str, specs: Iterable[LayerSpec]) -> None:
    """Refuse layers that this way of computing does not know, by name, with the nearest way that does."""
    supported, instead = WAYS[way]
    check_features(specs, supported, who=NAMES[way], instead=instead)


def missing(way: str, features: frozenset[str]) -> list[str]:
    """Which of a family's features this way does not know."""
    return sorted(features - WAYS[way][0])
