"""Shapes of ModernBERT-base, DeBERTa-v3-base, NomicBERT and RoBERTa-base with random weights: the stock model, padded,
against our engine, dense and pruned to half the FLOPs.

    python benchmarks/families.py [--device cuda] [--shapes modernbert,deberta-v3] [--dtype bf16] [--rounds 3]

Thresholds are set by the shares that layers keep, so the rows are of speed and say nothing of quality. Where a way of
computing does not know a family, the row says so in its own words.
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
    """The stock model with the attention that it takes by itself, on one padded batch."""
    model = model.to(device, dtype)
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=device)

    @torch.inference_mode()
    def run() -> object:
        return model(input_ids=ids, attention_mask=mask).logits.float().cpu()

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
    model, texts = model_of(shape), texts_of(lengths, options.texts)
    weights = read_weights(model)
    tokens, choice = Tokens.of(texts, None), Choice(options.device, options.device, options.dtype, "asked for")
    about = {"shape": shape, "lengths": lengths, "texts": len(texts), "tokens": tokens.total, "dtype": options.dtype}
    rows: list[Row] = []

    def add(name: str, run: Callable[[], object], **more: Any) -> None:
        seconds = per_round(run, options.rounds)
        rows.append({**about, "engine": name, "texts_per_second": len(texts) / seconds, **more})
        print({key: rows[-1][key] for key in ("shape", "lengths", "engine", "texts_per_second")}, flush=True)

    plans = {
        "dense": PruningPlan.dense(weights.shape.layers),
        "pruned": plan_for(weights, texts, device=options.device),
    }
    dense = float(engine_macs(weights.shape, *_counts(texts, weights)).sum())
    for name, plan in plans.items():
        try:
            executor: Executor = choice.build(weights, plan)
        except ModelError as error:
            rows.append({**about, "engine": f"thresher {name}", "refused": str(error)})
            print(rows[-1]["refused"], flush=True)
            continue
        kept = executor.compute(tokens).kept
        macs = float(engine_macs(weights.shape, _counts(texts, weights)[0], kept, alone=plan.alone).sum())
        packed = executor.pack(tokens)
        add(f"thresher {name}", lambda made=executor, batch=packed: made.run(batch), relative_flops=macs / dense)
    kind = {"fp32": torch.float32, "fp16": torch.float16}.get(options.dtype, torch.bfloat16)
    add("stock, padded", stock_way(model, texts, device=options.device, dtype=kind))
    return rows


def _counts(texts: list[list[int]], weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(text) for text in texts])
    return lengths, lengths[:, None].repeat(1, weights.shape.layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", help="bf16 on a CPU and fp16 on a GPU if not given")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--texts", type=int, help="32 on a CPU and 256 on a GPU if not given")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.dtype = options.dtype or ("bf16" if options.device == "cpu" else "fp16")
    options.texts = options.texts or (32 if options.device == "cpu" else 256)
    file = (RESULTS if options.device == "cpu" else HERE / "gpu") / "families.jsonl"
    for shape in options.shapes.split(","):
        for lengths in LENGTHS:
            for row in measured(shape, lengths, options):
                append_record(file, {**row, **made_by("families.py", device=options.device)})


if __name__ == "__main__":
    main()
