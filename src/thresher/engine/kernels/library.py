"""The library's attention for the long runs of a packed batch, where it is faster than our kernel.

torch's flash attention takes packed runs, reads where they start on the device, and gives every query's log-sum-exp,
which is all that the pass over columns needs. It has no split of a run's keys here, so its sums have one order.
"""
# mypy: disable-error-code="no-untyped-def"

import math
from itertools import pairwise

import torch
from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.kernels.toolchain import begin, jit, launching, power_of_two, tl

# Widths of heads for which it is faster; none was measured to be yet (benchmarks/gpu/attention_study.py).
FASTER: frozenset[int] = frozenset()
HALVES = (torch.float16, torch.bfloat16)
AT_ONCE = 1024  # runs


def is_faster(qkv: Tensor, *, heads: int, biased: bool) -> bool:
    """Whether long runs go to the library: by the model and the device alone, so that batching changes nothing."""
    return qkv.is_cuda and qkv.dtype in HALVES and not biased and qkv.shape[1] // 3 // heads in FASTER


def attend_long(qkv: Tensor, cu_seqlens: Tensor, *, heads: int, max_length: int, short: int) -> tuple[Tensor, Tensor]:
    """The context (capacity, width), and the log-sum-exp to base e (heads, capacity) in float32.

    Of runs of up to `short` tokens the context is zero and the log-sum-exp means nothing; rows past the runs are left
    as they are. qkv and cu_seqlens as attention takes them.
    """
    query, key, value = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    context, log_sum_exp, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        max_length,
        max_length,
        0.0,  # no dropout
        False,  # not causal
        False,  # no mask for debugging
        seqused_k=long_lengths(cu_seqlens, short=short),
    )
    return context.view(len(qkv), -1), log_sum_exp


def attend_long_reference(
    qkv: Tensor, cu_seqlens: Tensor, *, heads: int, max_length: int, short: int
) -> tuple[Tensor, Tensor]:
    """The same, one run at a time; zeros where nothing is computed."""
    width = qkv.shape[1] // 3
    context, log_sum_exp = qkv.new_zeros(len(qkv), width), torch.zeros(heads, len(qkv), device=qkv.device)
    for start, end in pairwise(cu_seqlens.tolist()):
        if end - start > short:
            parts = at_least_float32(qkv[start:end]).view(end - start, 3, heads, -1)
            query, key, value = parts.permute(1, 2, 0, 3)
            logits = query @ key.transpose(1, 2) / math.sqrt(width // heads)
            context[start:end] = (torch.softmax(logits, dim=-1) @ value).transpose(0, 1).flatten(1).to(qkv.dtype)
            log_sum_exp[:, start:end] = torch.logsumexp(logits, dim=-1)
    return context, log_sum_exp


def long_lengths(cu_seqlens: Tensor, *, short: int) -> Tensor:
    """The lengths of runs with more than `short` tokens, (sequences,) int32, and zero for the others."""
    runs = len(cu_seqlens) - 1
    lengths = torch.empty(runs, dtype=torch.int32, device=cu_seqlens.device)
    at_once = min(AT_ONCE, power_of_two(runs))
    _long_lengths[(-(-runs // at_once),)](
        lengths=lengths, cu_seqlens=cu_seqlens, runs=runs, SHORT=short, RUNS=at_once, **launching(cu_seqlens)
    )
    return lengths


def long_lengths_reference(cu_seqlens: Tensor, *, short: int) -> Tensor:
    """The same in plain torch."""
    lengths = cu_seqlens.diff()
    return torch.where(lengths > short, lengths, 0)


@jit
def _long_lengths(
    lengths,  # (runs,) int32
    cu_seqlens,  # (runs + 1,) int32
    runs,
    SHORT: tl.constexpr,
    RUNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    live = run < runs
    length = tl.load(cu_seqlens + run + 1, mask=live, other=0) - tl.load(cu_seqlens + run, mask=live, other=0)
    tl.store(lengths + run, tl.where(length > SHORT, length, 0), mask=live)
