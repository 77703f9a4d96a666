"""A packed batch for attention_study.py: what every variant is given, and what it should give."""

import itertools
import math
from typing import Any

import torch
from attention_variants import choose, columns, forward, from_first
from torch import Tensor

from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.toolchain import RUNS_INTERPRETED, blocks, descriptor, launching

HEADS = {32: 12, 64: 12, 128: 6}
DTYPE, DEVICE = torch.float16, "cpu" if RUNS_INTERPRETED else "cuda"
FORWARD = {"HALF": False, "TENSOR_SUMS": False, "BLOCKS_FIRST": False}
COLUMNS = {"HALF": False, "KEYS_AS_ROWS": False, "TENSOR_SUMS": False, "BLOCKS_FIRST": False}


class Case:
    """One packed batch: runs of given lengths, rows behind the last that hold no number."""

    def __init__(self, lengths: list[int], width: int, *, longest: int | None = None, seed: int = 0) -> None:
        self.lengths, self.width, self.heads = lengths, width, HEADS[width]
        self.tokens, self.longest = sum(lengths), longest or max(lengths)
        torch.manual_seed(seed)
        self.qkv = torch.randn(self.tokens + 77, 3 * self.heads * width, device=DEVICE).to(DTYPE)
        self.qkv[self.tokens :] = math.nan
        starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        self.starts = starts.to(DEVICE)
        self.positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]).to(DEVICE)
        self.capacity, self.pairs = len(self.qkv), len(lengths) * self.heads
        self.scale = math.log2(math.e) / math.sqrt(width)
        self.context = torch.full_like(self.qkv[:, : self.heads * width], math.nan)
        self.log_sum_exp = torch.full((self.heads, self.capacity), math.nan, device=DEVICE)
        self.received = torch.full((self.heads, self.capacity), math.nan, device=DEVICE)
        self.chosen = torch.zeros(self.capacity, dtype=torch.int32, device=DEVICE)
        self.counts = torch.zeros(len(lengths), dtype=torch.int32, device=DEVICE)

    def shared(self, *, tiles: Any = None) -> dict[str, Any]:
        return {
            "qkv": self.qkv,
            "cu_seqlens": self.starts,
            "capacity": self.capacity,
            "scale": self.scale,
            "HEADS": self.heads,
            "WIDTH": self.width,
        } | ({} if tiles is False else {"tiles": tiles})

    def engine(self, score: str | None, score_queries: int = 1) -> Any:
        return attention(
            self.qkv,
            self.starts,
            heads=self.heads,
            max_length=self.longest,
            score=score,
            score_queries=score_queries,
            positions=self.positions,
            typical=128,
        )

    def forward(self, *, queries: int, keys: int, warps: int, stages: int, tma: bool, **extra: Any) -> Any:
        named = {**FORWARD, **extra}
        grid = (self.pairs, blocks(self.longest, queries))
        return forward[grid[::-1] if named["BLOCKS_FIRST"] else grid](
            context=self.context,
            log_sum_exp=self.log_sum_exp,
            **self.shared(tiles=descriptor(self.qkv, (keys, self.width)) if tma else None),
            QUERIES=queries,
            KEYS=keys,
            STAGES=stages,
            **named,
            **launching(self.qkv, num_warps=warps, num_stages=stages),
        )

    def columns(self, *, every: int, queries: int, keys: int, warps: int, stages: int, tma: bool, **extra: Any) -> Any:
        named = {**COLUMNS, **extra}
        if every > 1:
            choose[(len(self.lengths),)](
                self.chosen, self.counts, self.starts, self.positions, every, 512, **launching(self.qkv)
            )
        grid = (self.pairs, blocks(self.longest, keys))
        return columns[grid[::-1] if named["BLOCKS_FIRST"] else grid](
            received=self.received,
            log_sum_exp=self.log_sum_exp,
            **self.shared(tiles=descriptor(self.qkv, (queries, self.width)) if tma else None),
            chosen=self.chosen if every > 1 else None,
            counts=self.counts if every > 1 else None,
            QUERIES=queries,
            KEYS=keys,
            STAGES=stages,
            **named,
            **launching(self.qkv, num_warps=warps, num_stages=stages),
        )

    def first(self, *, keys: int, warps: int) -> Any:
        return from_first[(len(self.lengths), blocks(self.longest, keys))](
            received=self.received,
            log_sum_exp=self.log_sum_exp,
            **self.shared(tiles=False),
            KEYS=keys,
            **launching(self.qkv, num_warps=warps),
        )

    def exact(self) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Context, log-sum-exp to base 2, and what keys receive from every n-th query (0: the first), in float32."""
        contexts, sums, received = [], [], {every: [] for every in (0, 1, 4, 8, 16)}
        for start, length in zip(self.starts.tolist(), self.lengths, strict=False):
            parts = self.qkv[start : start + length].float().view(length, 3, self.heads, self.width)
            query, key, value = parts.permute(1, 2, 0, 3)
            logits = query @ key.transpose(1, 2) * self.scale
            sums.append(torch.logsumexp(logits * math.log(2), -1) / math.log(2))
            weights = torch.exp2(logits - sums[-1][..., None])
            contexts.append((weights @ value).transpose(0, 1).flatten(1))
            for every, found in received.items():
                found.append(weights[:, :1].sum(1) if every == 0 else weights[:, ::every].sum(1))
        return torch.cat(contexts), torch.cat(sums, 1), {k: torch.cat(v, 1) for k, v in received.items()}
