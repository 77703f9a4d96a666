"""Shapes of ModernBERT-base, DeBERTa-v3-base, NomicBERT and RoBERTa-base with random weights: our engine, dense and
pruned to half the FLOPs, against the stock model, padded, and against the same model without padding in plain torch.

    python benchmarks/families.py [--device cuda] [--shapes modernbert,deberta-v3] [--dtype bf16] [--rounds 3]

Thresholds are set by the shares that layers keep, so the rows are of speed and say nothing of quality. Where a way of
computing does not know a family or fails, the row says so in its own words. Padded batches hold texts of like length.
On a GPU the unpadded rival attends with torch's kernel for runs of many lengths, windows included, and DeBERTa has
another rival where disentangled-flash can be imported (pip install --no-deps disentangled-flash==1.1.1).
"""

import argparse
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
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
MORE_LENGTHS = {"sst2": (28, 12, 5, 72)}  # of before_after.py alone
HALF = 0.5
FALL = 8.4  # of 12 layers: tokens are dropped little by little
TOKENS = {"cpu": 1024, "cuda": 32_768}  # of a batch, if not said; on a GPU as many as the engine packs
PADDED = 128  # texts of a padded batch
Way = tuple[Callable[[], object], float | None, Row]  # what is timed, its multiply-adds if counted, and more to say


def model_of(shape: str) -> Any:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    kind, sizes = SHAPES[shape]
    special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=WORDS, **special, **sizes)
    return AutoModelForSequenceClassification.from_config(config).eval()


def texts_of(name: str, count: int) -> list[list[int]]:
    mean, spread, shortest, longest = {**MORE_LENGTHS, **LENGTHS}[name]
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
    shares = shares_for(HALF, weights.shape, [len(text) for text in texts], fall=FALL, least=0.0)
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


def disentangled_way(model: Any, texts: list[list[int]], *, device: str, dtype: torch.dtype) -> Callable[[], object]:
    """DeBERTa's stock model with the encoder of disentangled-flash, texts end to end. Changes the model."""
    if device == "cpu":
        raise ModelError("disentangled-flash computes on GPUs alone")
    from disentangled_flash import optimize_deberta, validate_cu_seqlens  # from PyPI; not needed for anything else

    model = model.to(device, dtype)
    optimize_deberta(model.deberta, backend="triton")
    starts = torch.tensor([0, *accumulate(map(len, texts))], dtype=torch.int32, device=device)
    ids = torch.tensor([[word for text in texts for word in text]], device=device)
    info = validate_cu_seqlens(starts, ids.numel())  # on the host, once, as our batches are packed beforehand

    @torch.inference_mode()
    def run() -> object:
        states = model.deberta.embeddings(input_ids=ids)[0]
        states = model.deberta.encoder.forward_packed(
            states, starts, output_hidden_states=False, packed_info=info
        ).last_hidden_state
        return model.classifier(model.pooler(states[starts[:-1].long()][:, None])).float().cpu()

    return run


def measured(shape: str, lengths: str, options: argparse.Namespace, record: Callable[[Row], None]) -> None:
    """Every way in turn. What fails is a row, too, with its reason, and the next way goes on."""
    device, dtype = options.device, {"fp32": torch.float32, "fp16": torch.float16}.get(options.dtype, torch.bfloat16)
    count = options.texts or TOKENS[device] // LENGTHS[lengths][0]
    texts = texts_of(lengths, count)
    tokens, choice = Tokens.of(texts, None), Choice(device, device, options.dtype, "asked for")
    about = {"shape": shape, "lengths": lengths, "texts": len(texts), "tokens": tokens.total, "dtype": options.dtype}

    def add(name: str, make: Callable[[], Way]) -> None:
        row: Row = {**about, "engine": name}
        try:
            run, macs, more = make()
            seconds = per_round(run, options.rounds)
        except Exception as error:
            row["refused"] = f"{type(error).__name__}: {str(error)[:300]}"
        else:
            row |= {"texts_per_second": len(texts) / seconds, **more}
            if macs is not None:
                row |= {"relative_flops": macs / dense, "teraflops_per_second": 2e-12 * macs / seconds}
        print({name: value for name, value in row.items() if name not in ("texts", "tokens", "dtype")}, flush=True)
        record(row)

    def ours(plan: PruningPlan) -> Way:
        executor: Executor = choice.build(weights, plan)
        kept, packed = executor.compute(tokens).kept, executor.pack(tokens)
        macs = float(engine_macs(weights.shape, _counts(texts, weights)[0], kept, alone=plan.alone).sum())
        return lambda: executor.run(packed), macs, {}

    def unpadded() -> Way:
        rival = UnpaddedDense(weights, dtype=options.dtype, device=device)
        given = rival.pack(texts)
        return lambda: rival.run(given), None, {"attention": rival.attention}

    try:
        model = model_of(shape)
        weights = read_weights(model)
    except Exception as error:  # this library may not know the family yet; the other shapes go on
        row: Row = {**about, "engine": "all", "refused": f"{type(error).__name__}: {str(error)[:300]}"}
        print(row, flush=True)
        return record(row)
    dense = float(engine_macs(weights.shape, *_counts(texts, weights)).sum())
    add("thresher dense", lambda: ours(PruningPlan.dense(weights.shape.layers)))
    add("thresher pruned", lambda: ours(plan_for(weights, texts, device=device)))
    add("unpadded, plain torch", unpadded)
    attention = {"attention": str(model.config._attn_implementation)}
    add("stock, padded", lambda: (stock_way(model, texts, device=device, dtype=dtype), None, attention))
    if shape.startswith("deberta"):
        add("disentangled-flash", lambda: (disentangled_way(model, texts, device=device, dtype=dtype), None, {}))


def _counts(texts: list[list[int]], weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(text) for text in texts])
    return lengths, lengths[:, None].repeat(1, weights.shape.layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", help="bf16 on a CPU and fp16 on a GPU if not given")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--texts", type=int, help="as many as 1,024 tokens on a CPU and 32,768 on a GPU if not given")
    parser.add_argument("--rounds", type=int, help="3 on a CPU and 20 on a GPU if not given")
    parser.add_argument("--out", type=Path, help="families.jsonl of the device's records if not given")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bf16" if options.device == "cpu" else "fp16")
    options.rounds = options.rounds or (3 if options.device == "cpu" else 20)
    if unknown := [shape for shape in options.shapes.split(",") if shape not in SHAPES]:
        parser.error(f"--shapes {','.join(unknown)} is not known; there are: {', '.join(SHAPES)}")
    file = options.out or (RESULTS if options.device == "cpu" else HERE / "gpu") / "families.jsonl"
    for shape in options.shapes.split(","):
        for lengths in LENGTHS:
            where = made_by("families.py", device=options.device)
            measured(shape, lengths, options, lambda row, where=where: append_record(file, {**row, **where}))


if __name__ == "__main__":
    main()
