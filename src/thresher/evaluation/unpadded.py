"""The strongest dense rival that torch alone gives: all tokens end to end, library products, no padding, no pruning."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.layer import LayerSpec, attention_input, finish
from thresher.core.places import rotated, turns
from thresher.engine.backends.reference import DTYPES
from thresher.engine.plain import embedded, linear, normed, steps_of
from thresher.engine.ragged import Ragged
from thresher.engine.supported import check_supported
from thresher.engine.weights import Weights, converted

INSTEAD = "SDPA of one text at a time, not torch.nn.attention.varlen:"


@dataclass(frozen=True)
class PackedTokens:
    """A batch on the host. tokens: (4, total) ids, rows of their positions, types, and positions; starts: (batch + 1,)
    int32."""

    tokens: Tensor
    starts: Tensor
    lengths: list[int]


class UnpaddedDense:
    """`attention` says which kind runs: torch's for runs of many lengths, or SDPA of one text after the other."""

    def __init__(self, weights: Weights, *, dtype: str, device: str) -> None:
        check_supported("unpadded rival", weights.specs)
        self.device = device
        self.weights = converted(weights, dtype=DTYPES[dtype], device=device)
        self.varlen, self.attention = _varlen(weights, dtype, device)

    def logits(
        self, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int] | None] | None = None
    ) -> Tensor:
        """(batch, outputs) in float32 on the host, or (total, outputs) where tokens are read. Missing types: zeros."""
        return self.run(self.pack(input_ids, token_types))

    def pack(
        self, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int] | None] | None = None
    ) -> PackedTokens:
        """The part of the work that needs no device."""
        lengths = [len(ids) for ids in input_ids]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        total = int(starts[-1])
        tokens = torch.zeros(4, total, dtype=torch.long, pin_memory=self.device != "cpu")
        tokens[0].numpy()[:] = np.fromiter(chain.from_iterable(input_ids), np.int64, total)
        runs = Ragged(
            values=tokens[0],
            cu_seqlens=torch.from_numpy(starts),
            positions=torch.from_numpy(np.arange(total) - np.repeat(starts[:-1], lengths)),
            sequences=torch.arange(len(lengths)),
        )
        tokens[1], tokens[3] = self.weights.position_rows(runs), runs.positions
        if token_types is not None and any(token_types):
            kinds = (kinds or [0] * length for kinds, length in zip(token_types, lengths, strict=True))
            tokens[2].numpy()[:] = np.fromiter(chain.from_iterable(kinds), np.int64, total)
        return PackedTokens(tokens, torch.from_numpy(starts.astype(np.int32)), lengths)

    @torch.inference_mode()
    def run(self, batch: PackedTokens) -> Tensor:
        """Copy a packed batch to the device, compute, and copy the logits back."""
        weights = self.weights
        starts = batch.starts.to(self.device, non_blocking=True)
        *parts, positions = batch.tokens.to(self.device, non_blocking=True)
        hidden, bias = embedded(weights, *parts), self._bias(max(batch.lengths))
        turned = self._turns(positions)
        for layer in weights.layers:
            spec, steps = layer.spec, steps_of(layer)
            qkv = linear(attention_input(spec, steps, hidden), layer.qkv).view(len(hidden), 3, spec.heads, -1)
            if spec.rotary_base is not None:
                qkv[:, :2] = rotated(qkv[:, :2], *turned[spec.rotary_base])
            context = self._attend(spec, qkv, starts, batch.lengths, bias).reshape(len(hidden), -1)
            hidden = finish(spec, steps, context, hidden)
        hidden = normed(hidden, weights.final_norm)
        if weights.head.reads == "mean":
            read = torch.stack([states.float().mean(dim=0) for states in torch.split(hidden, batch.lengths)])
        elif weights.head.reads == "first":
            read = hidden[starts[:-1].long()]
        else:
            read = hidden
        return weights.head(read).float().cpu()

    def _turns(self, positions: Tensor) -> dict[float, tuple[Tensor, ...]]:
        """Cosines and sines (total, 1, 1, head width) by the layers' bases, once for all of them."""
        bases = {spec.rotary_base: spec.head_width for spec in self.weights.specs if spec.rotary_base is not None}
        return {
            base: tuple(table[:, None, None] for table in turns(positions, base=base, width=width))
            for base, width in bases.items()
        }

    def _bias(self, longest: int) -> Tensor | None:
        """(heads, longest, longest) to add to the attention logits; a shorter text takes its upper left part."""
        table = self.weights.distance_bias
        if table is None:
            return None
        places = torch.arange(longest, device=table.device)
        return table[places[None, :] - places[:, None] + len(table) // 2].permute(2, 0, 1).contiguous()

    def _attend(self, spec: LayerSpec, qkv: Tensor, starts: Tensor, lengths: list[int], bias: Tensor | None) -> Tensor:
        """(total, 3, heads, head width) -> (total, heads, head width)."""
        longest = max(lengths)
        if self.varlen is not None:
            sees: Any = {} if spec.window is None else {"window_size": (spec.window, spec.window)}
            found: Tensor = self.varlen(*qkv.unbind(1), starts, starts, longest, longest, **sees)
            return found
        near = None
        if spec.window is not None:
            places = torch.arange(longest, device=qkv.device)
            near = ((places[None, :] - places[:, None]).abs() <= spec.window)[None]
        contexts = []
        for run in torch.split(qkv, lengths):
            # Four dimensions: with three, torch leaves its fused kernels aside.
            query, key, value = run.permute(1, 2, 0, 3)[:, None]
            mask = near if bias is None else bias
            mask = None if mask is None else mask[None, :, : len(run), : len(run)]
            contexts.append(F.scaled_dot_product_attention(query, key, value, attn_mask=mask)[0].transpose(0, 1))
        return torch.cat(contexts)


def _varlen(weights: Weights, dtype: str, device: str) -> tuple[Callable[..., Any] | None, str]:
    """torch's attention for packed runs, and its name; or None, and what is done instead and why."""
    why = None
    if weights.distance_bias is not None:
        why = "it takes no position bias"
    elif not device.startswith("cuda") or dtype not in ("fp16", "bf16"):
        why = f"it does not run in {dtype} on {device}"
    else:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError as error:
            why = str(error)
        else:
            if any(spec.window is not None for spec in weights.specs):
                if "window_size" not in inspect.signature(varlen_attn).parameters:
                    return None, f"{INSTEAD} it knows no windows in this torch"
            return varlen_attn, "torch.nn.attention.varlen"
    return None, f"{INSTEAD} {why}"
