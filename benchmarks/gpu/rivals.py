"""What thresher is measured against: Hugging Face, padded, in several ways, and dense unpadded torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.engine.backends.reference import DTYPES
from thresher.engine.weights import Weights, converted

Work = Callable[[], object]
PAD = 1


def padded(texts: Sequence[Sequence[int]], *, pinned: bool, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Right-padded ids and mask on the host."""
    widest = width or max(map(len, texts))
    ids = torch.full((len(texts), widest), PAD)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    mask = (ids != PAD).long()
    return (ids.pin_memory(), mask.pin_memory()) if pinned else (ids, mask)


def hugging_face(model: Any, batches: Sequence[tuple[Tensor, Tensor]], device: str) -> Work:
    """Copies in, forward and copy out of one batch, or of several smaller ones."""

    @torch.inference_mode()
    def work() -> list[Tensor]:
        results = []
        for ids, mask in batches:
            inputs = {
                "input_ids": ids.to(device, non_blocking=True),
                "attention_mask": mask.to(device, non_blocking=True),
            }
            results.append(model(**inputs).logits)
        return [result.float().cpu() for result in results]

    return work


def sorted_batches(texts: Sequence[Sequence[int]], *, pinned: bool, parts: int = 4) -> list[tuple[Tensor, Tensor]]:
    """The same texts by length, in up to four batches, so that little of each is padding."""
    ordered = sorted(texts, key=len)
    size = -(-len(ordered) // min(parts, len(ordered)))
    return [padded(ordered[i : i + size], pinned=pinned) for i in range(0, len(ordered), size)]


class UnpaddedDense:
    """All tokens end to end, library products, torch's attention for runs of different lengths, no pruning."""

    def __init__(self, weights: Weights, *, dtype: str, device: str) -> None:
        self.weights = converted(weights, dtype=DTYPES[dtype], device=device)
        self.device = device
        self.how = "torch.nn.attention.varlen"
        try:
            from torch.nn.attention.varlen import varlen_attn

            if device == "cpu":
                raise ImportError("it does not run on CPUs")
            self.varlen: Any = varlen_attn
        except ImportError as error:
            self.how, self.varlen = f"SDPA of one text at a time ({error})", None

    def work(self, texts: Sequence[Sequence[int]]) -> Work:
        lengths = torch.tensor([len(text) for text in texts])
        ids = torch.cat([torch.tensor(text) for text in texts])
        positions = torch.cat([torch.arange(len(text)) for text in texts]) + self.weights.position_offset
        starts = F.pad(lengths.cumsum(0), (1, 0)).int()
        host = [each.pin_memory() if self.device != "cpu" else each for each in (ids, positions, starts)]
        longest = int(lengths.max())

        @torch.inference_mode()
        def run() -> Tensor:
            there, places, edges = (each.to(self.device, non_blocking=True) for each in host)
            return self._forward(there, places, edges, longest).float().cpu()

        return run

    def _forward(self, ids: Tensor, positions: Tensor, starts: Tensor, longest: int) -> Tensor:
        weights = self.weights
        hidden = F.embedding(ids, weights.word) + F.embedding(positions, weights.position)
        if weights.token_type is not None:
            hidden = hidden + weights.token_type[0]
        hidden = self._norm(hidden, weights.embedding_norm)
        for layer in weights.layers:
            qkv = F.linear(hidden, layer.qkv.weight, layer.qkv.bias).view(len(hidden), 3, layer.heads, -1)
            context = self._attend(qkv, starts, longest).reshape(len(hidden), -1)
            projected = F.linear(context, layer.attention_output.weight, layer.attention_output.bias)
            attended = self._norm(projected + hidden, layer.attention_norm)
            inner = layer.activation(F.linear(attended, layer.ffn_in.weight, layer.ffn_in.bias))
            out = F.linear(inner, layer.ffn_out.weight, layer.ffn_out.bias)
            hidden = self._norm(out + attended, layer.output_norm)
        first = hidden[starts[:-1].long()]
        pooled = weights.head_activation(F.linear(first, weights.head_dense.weight, weights.head_dense.bias))
        return F.linear(pooled, weights.head_output.weight, weights.head_output.bias)

    def _attend(self, qkv: Tensor, starts: Tensor, longest: int) -> Tensor:
        """(total, 3, heads, head width) -> (total, heads, head width)."""
        query, key, value = qkv.unbind(1)
        if self.varlen is not None:
            found: Tensor = self.varlen(query, key, value, starts, starts, longest, longest)
            return found
        edges = starts.tolist()
        runs = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        by_head = [[part[run].transpose(0, 1) for part in (query, key, value)] for run in runs]
        return torch.cat([F.scaled_dot_product_attention(q, k, v).transpose(0, 1) for q, k, v in by_head])

    def _norm(self, values: Tensor, norm: Any) -> Tensor:
        return F.layer_norm(values, values.shape[-1:], norm.weight, norm.bias, norm.epsilon)
