"""Single kernels against what the library offers for the same work."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from setting import Setting, kernel_ms

from thresher.engine.backends.reference import DTYPES
from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.linear import linear, linear_in_parts
from thresher.engine.kernels.norm import add_norm
from thresher.engine.kernels.plans import ACTIVATED, plan
from thresher.engine.kernels.prune import prune

ROWS = (13312, 6656, 2048, 52)
MATRICES = {"qkv": (768, 2304), "output": (768, 768), "ffn_in": (768, 3072), "ffn_out": (3072, 768)}
RUNS = (64, 128, 256, 512, 4096)
TOKENS, HEADS, WIDTH = 16384, 12, 768
LAYER_MACS = 12 * WIDTH * WIDTH  # per token, without attention
SCORED = {"plain": None, "scored": "attention", "scored by value": "value"}


def measure_kernels(setting: Setting) -> None:
    linears(setting)
    norms(setting)
    measure_scores(setting)


def measure_scores(setting: Setting) -> None:
    """What scores cost: attention with and without, and pruning by them."""
    attentions(setting)
    prunings(setting)


def row(setting: Setting, name: str, mode: str, size: int, ms: float, macs: float, lengths: str = "") -> None:
    setting.record(
        bench="kernels",
        engine=name,
        mode=mode,
        batch=size,
        lengths=lengths,
        ms_p50=ms,
        sequences_per_s=None,
        useful_tflops=2 * macs / ms / 1e9,
        relative_flops=None,
    )


def linears(setting: Setting) -> None:
    for rows in ROWS if not setting.arguments.tiny else (64,):
        for name in MATRICES:
            with setting.attempt(bench="kernels", engine=f"linear {name}", batch=rows):
                one_linear(setting, rows, name)


def one_linear(setting: Setting, rows: int, name: str) -> None:
    device, dtype = setting.device, DTYPES[setting.dtype]
    inputs, outputs = MATRICES[name]
    values = torch.randn(rows, inputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype) / math.sqrt(inputs)
    bias = torch.randn(outputs, device=device, dtype=dtype)
    all_rows, half = (torch.tensor([n], dtype=torch.int32, device=device) for n in (rows, rows // 2))
    gather = torch.randperm(rows, device=device).int()
    parts_tile, parts = plan(rows, weight, divisible=True)

    def library() -> Any:
        return F.linear(values, weight, bias)

    activated = name == "ffn_in"
    tile, half_tile = (plan(n, weight, end=ACTIVATED * activated)[0] for n in (rows, rows // 2))

    def ours(**named: Any) -> Any:
        return linear(values, weight, bias, activation="gelu" if activated else "none", **named)

    candidates: dict[str, Any] = {
        "library": library,
        "kernel": lambda: ours(count=all_rows, tile=tile),
        "half live": lambda: ours(count=half, tile=half_tile),
    }
    if activated:
        candidates["library+gelu"] = lambda: torch.ops.aten.gelu_(library())
    if name == "output":
        candidates["library+gather"] = lambda: F.linear(values.index_select(0, gather), weight, bias)
        candidates["gather"] = lambda: ours(rows=gather, count=all_rows, tile=tile)
    if parts > 1:
        candidates[f"{parts} parts"] = lambda: linear_in_parts(
            values, weight, parts=parts, count=all_rows, tile=parts_tile
        )
    for mode, work in candidates.items():
        share = 0.5 if mode == "half live" else 1.0
        row(setting, f"linear {name}", mode, rows, kernel_ms(work, device), share * rows * inputs * outputs)


def attentions(setting: Setting) -> None:
    device, dtype = setting.device, DTYPES[setting.dtype]
    tokens = TOKENS if not setting.arguments.tiny else 128
    for length in RUNS if not setting.arguments.tiny else (64,):
        count, shown = tokens // length, f"n={length}"
        macs = 2 * tokens * length * WIDTH
        with setting.attempt(bench="kernels", engine="attention", batch=count, lengths=shown):
            qkv = torch.randn(tokens, 3 * WIDTH, device=device, dtype=dtype)
            starts = torch.arange(0, tokens + 1, length, device=device).int()
            # What scores may cost: five percent of a layer, taken here at 500 TFLOP/s.
            layer, times = 2 * (tokens * LAYER_MACS + macs) / 500e9, {}
            for mode, score in SCORED.items():
                ours = partial(attention, qkv, starts, heads=HEADS, max_length=length, score=score)
                times[mode] = kernel_ms(ours, device)
                row(setting, "attention", mode, count, times[mode], macs, shown)
                cost = times[mode] - times["plain"]
                print(f"  {mode} at n={length}: +{cost:.4f} ms, {cost / layer:.1%} of a layer at 500 TFLOP/s")
        with setting.attempt(bench="kernels", engine="attention", mode="library", batch=count, lengths=shown):
            dense: Any = torch.randn(3, count, HEADS, length, WIDTH // HEADS, device=device, dtype=dtype)

            def sdpa(dense: Any = dense) -> Any:
                return F.scaled_dot_product_attention(*dense)

            row(setting, "attention", "SDPA", count, kernel_ms(sdpa, device), macs, shown)
        if device == "cpu":
            continue
        with setting.attempt(bench="kernels", engine="attention", mode="varlen", batch=count, lengths=shown):
            from torch.nn.attention.varlen import varlen_attn

            query, key, value = qkv.view(tokens, 3, HEADS, WIDTH // HEADS).unbind(1)
            varlen = partial(varlen_attn, query, key, value, starts, starts, length, length)

            row(setting, "attention", "varlen", count, kernel_ms(varlen, device), macs, shown)


def norms(setting: Setting) -> None:
    """No arithmetic to speak of, so what counts is the time alone; so in pruning."""
    device, dtype = setting.device, DTYPES[setting.dtype]
    tokens = 12800 if not setting.arguments.tiny else 100
    with setting.attempt(bench="kernels", engine="add_norm", batch=tokens):
        values, residual = (torch.randn(tokens, WIDTH, device=device, dtype=dtype) for _ in range(2))
        weight, bias = torch.ones(WIDTH, device=device), torch.zeros(WIDTH, device=device)
        ms = kernel_ms(lambda: add_norm(values, residual, weight, bias, epsilon=1e-5), device)
        row(setting, "add_norm", "kernel", tokens, ms, 0.0)
        slope, offset = weight.to(dtype), bias.to(dtype)
        ms = kernel_ms(lambda: F.layer_norm(values + residual, (WIDTH,), slope, offset), device)
        row(setting, "add_norm", "library", tokens, ms, 0.0)


def prunings(setting: Setting) -> None:
    """A batch of short runs, one of runs that take several tiles, and one text, which takes one launch."""
    device, tiny = setting.device, setting.arguments.tiny
    for tokens, length in ((12800, 50), (16384, 4096), (52, 52)) if not tiny else ((100, 50),):
        count, shown = tokens // length, "" if length == 50 else f"n={length}"
        with setting.attempt(bench="kernels", engine="prune", batch=count, lengths=shown):
            received = torch.rand(HEADS, tokens, device=device) * 2
            starts = torch.arange(0, tokens + 1, length, device=device).int()
            positions = torch.arange(tokens, device=device).int() % length
            protected = positions == 0
            for mode, score in (("kernel", "attention"), ("kernel, by value", "value")):
                named: dict[str, Any] = {"threshold": 1.0, "max_length": length, "score": score}
                work = partial(prune, received, starts, positions, protected, **named)
                row(setting, "prune", mode, count, kernel_ms(work, device), 0.0, shown)
