"""Shapes of ModernBERT-base, DeBERTa-v3-base, NomicBERT and RoBERTa-base with random weights: our engine, dense and
pruned to half the FLOPs, against the stock model, padded, and against the same model without padding in plain torch.

    python benchmarks/families.py [--device cuda] [--shapes modernbert,deberta-v3] [--dtype bf16] [--rounds 3]

Thresholds are set by the shares that layers keep, so the rows are of speed and say nothing of quality. Where a way of
computing does not know a family, the row says so in its own words. Padded batches hold texts of like length. On a GPU
the unpadded rival attends with torch's kernel for runs of many lengths, windows included.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from long import shares_for
from measuring import HERE, RESULTS, Row, made_by

from thresher.core.cost import engine_macs
from thresher.core.plan import PruningPlan
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.reference import Reference
from thresher.engine.choose import Choice
from thresher.engine.executor import Executor
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import Weights, read_weights
from thresher.errors import ModelError
from thresher.evaluation.unpadded import UnpaddedDense
from thresher.records import append_record
from thresher.tokenizing.tokens import Tokens

DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "share_att_key": True}
DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "max_relative_positions": -1}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("roberta", {**BASE, "max_position_embeddings": 514}),
    "nomic": ("nomic_bert", {}),
    "modernbert": ("modernbert", {"classifier_pooling": "cls"}),
    "deberta-v3": ("deberta-v2", {**BASE, **DEBERTA}),
}
WORDS = 30_000  # the table of words is no part of what is measured
LENGTHS = {"qnli": (50, 20, 10, 128), "512 tokens": (512, 0, 512, 512)}  # mean, spread, shortest, longest
HALF = 0.5
GPU_TOKENS = 32_768  # of a batch, as the engine packs them
PADDED = 128  # texts of a padded batch


def model_of(shape: str) -> Any:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    kind, sizes = SHAPES[shape]
    special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=WORDS, **special, **sizes)
    return AutoModelForSequenceClassification.from_config(config).eval()


def texts_of(name: str, count: int) -> list[list[int]]:
    mean, spread, shortest, longest = LENGTHS[name]
    random = np.random.default_rng(0)
    sizes = random.normal(mean, spread, count).clip(shortest, longest).round().astype(int).tolist()
    return [random.integers(10, WORDS, size).tolist() for size in sizes]


def stock_way(model: Any, texts: list[list[int]], *, device: str, dtype: torch.dtype) -> Callable[[], object]:
    """The stock model with the attention that it takes by itself, on padded batches of texts of like length."""
    model, texts = model.to(device, dtype), sorted(texts, key=len)
    batches = []
    for first in range(0, len(texts), PADDED):
        part = texts[first : first + PADDED]
        longest = max(map(len, part))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in part], device=device)
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in part], device=device)
        batches.append((ids, mask))

    @torch.inference_mode()
    def run() -> object:
        found = [model(input_ids=ids, attention_mask=mask).logits for ids, mask in batches]
        return torch.cat(found).float().cpu()

    return run


def plan_for(weights: Weights, texts: list[list[int]], *, device: str) -> PruningPlan:
    """Thresholds that leave the shares which cost half."""
    shares = shares_for(HALF, weights.shape, [len(text) for text in texts])
    plan = PruningPlan.dense(weights.shape.layers)
    backend = Cpu(weights, plan) if device == "cpu" else Reference(weights, plan, device=device)
    executor = PackedExecutor(backend)
    return plan.with_thresholds(executor.fit(shares, executor.pack(texts)))


def per_round(run: Callable[[], object], rounds: int) -> float:
    """The median of seconds, after one round that does not count."""
    run()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return median(times)


def measured(shape: str, lengths: str, options: argparse.Namespace) -> list[Row]:
    count = options.texts or (32 if options.device == "cpu" else GPU_TOKENS // LENGTHS[lengths][0])
    model, texts = model_of(shape), texts_of(lengths, count)
    weights = read_weights(model)
    tokens, choice = Tokens.of(texts, None), Choice(options.device, options.device, options.dtype, "asked for")
    about = {"shape": shape, "lengths": lengths, "texts": len(texts), "tokens": tokens.total, "dtype": options.dtype}
    rows: list[Row] = []

    def add(name: str, run: Callable[[], object], *, macs: float | None = None, **more: Any) -> None:
        seconds = per_round(run, options.rounds)
        rows.append({**about, "engine": name, "texts_per_second": len(texts) / seconds, **more})
        if macs is not None:
            rows[-1] |= {"relative_flops": macs / dense, "teraflops_per_second": 2e-12 * macs / seconds}
        print({key: value for key, value in rows[-1].items() if key not in ("texts", "tokens", "dtype")}, flush=True)

    def refused(name: str, error: Exception) -> None:
        rows.append({**about, "engine": name, "refused": str(error)})
        print(rows[-1]["refused"], flush=True)

    plans = {
        "dense": PruningPlan.dense(weights.shape.layers),
        "pruned": plan_for(weights, texts, device=options.device),
    }
    dense = float(engine_macs(weights.shape, *_counts(texts, weights)).sum())
    for name, plan in plans.items():
        try:
            executor: Executor = choice.build(weights, plan)
        except ModelError as error:
            refused(f"thresher {name}", error)
            continue
        kept = executor.compute(tokens).kept
        macs = float(engine_macs(weights.shape, _counts(texts, weights)[0], kept, alone=plan.alone).sum())
        packed = executor.pack(tokens)
        add(f"thresher {name}", lambda made=executor, batch=packed: made.run(batch), macs=macs)
    kind = {"fp32": torch.float32, "fp16": torch.float16}.get(options.dtype, torch.bfloat16)
    try:
        rival = UnpaddedDense(weights, dtype=options.dtype, device=options.device)
    except ModelError as error:
        refused("unpadded, plain torch", error)
    else:
        given = rival.pack(texts)
        add("unpadded, plain torch", lambda: rival.run(given), attention=rival.attention)
    add("stock, padded", stock_way(model, texts, device=options.device, dtype=kind), attention=attention_of(model))
    return rows


def attention_of(model: Any) -> str:
    return str(model.config._attn_implementation)


def _counts(texts: list[list[int]], weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(text) for text in texts])
    return lengths, lengths[:, None].repeat(1, weights.shape.layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", help="bf16 on a CPU and fp16 on a GPU if not given")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--texts", type=int, help="32 on a CPU and as many as a batch holds on a GPU if not given")
    parser.add_argument("--rounds", type=int, help="3 on a CPU and 20 on a GPU if not given")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bf16" if options.device == "cpu" else "fp16")
    options.rounds = options.rounds or (3 if options.device == "cpu" else 20)
    file = (RESULTS if options.device == "cpu" else HERE / "gpu") / "families.jsonl"
    for shape in options.shapes.split(","):
        for lengths in LENGTHS:
            for row in measured(shape, lengths, options):
                append_record(file, {**row, **made_by("families.py", device=options.device)})


if __name__ == "__main__":
    main()
