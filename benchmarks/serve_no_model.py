"""`thresher serve` without a model: all of a server but the computing, for the ceiling of its HTTP side.

python benchmarks/serve_gpu.py --no-model --processes 1 [--texts qnli/validation.jsonl.xz]

Texts are received, checked, tokenized, queued, put into batches and answered as always; a batch takes no time, and its
outputs are zeros. serve_gpu.py starts this module in a process of its own.
"""

from typing import Any

import torch

from thresher.engine.choose import Choice
from thresher.engine.executor import AnySize, Output, batch_of
from thresher.jobs.serve import serve
from thresher.tokenizing.tokens import Tokens


class NoModel(AnySize):
    """An executor in the place of another. Batches are those of a GPU: large, of neighbours, three in flight."""

    token_budget, in_flight, by_length = 32_768, 3, False

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pack(self, input_ids: Any, token_types: Any = None) -> Tokens:
        return batch_of(input_ids, token_types)

    def launch(self, packed: Tokens) -> Tokens:
        return packed

    def finish(self, begun: Tokens) -> Output:
        layers = self._inner.shape.layers
        return Output(torch.zeros(len(begun), 2), torch.ones(len(begun), layers, dtype=torch.long))

    def compute(self, input_ids: Any, token_types: Any = None) -> Output:
        return self.finish(self.pack(input_ids, token_types))


def serve_without_model(run: str, **how: Any) -> None:
    """The server of a run whose executor is taken away."""
    build = Choice.build
    Choice.build = lambda choice, weights, plan: NoModel(build(choice, weights, plan))  # type: ignore[method-assign]
    serve([run], **how)
