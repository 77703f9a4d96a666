"""From text to answer: what a user measures, beside the kernels alone. From the repository's root:

    PYTHONPATH=src python benchmarks/end_to_end.py [PART ...] --texts qnli/validation.jsonl [--tokenizer FOLDER]

Parts: qnli (pairs as they are, a base-size model) and long (pairs of about 380 tokens, 12 layers of 384: the shape of a
small cross-encoder). Models have random weights; thresholds are set so that every layer keeps as many tokens as one
trained on QNLI (0.46 relative FLOPs). Engines take turns in one run: transformers' own pipeline (padded, its best batch
size), thresher dense and pruned from text to arrays, and the same batches through the kernels alone. Beside them, where
the time of a text goes. Without --texts, words are made up; without --tokenizer, a WordPiece vocabulary is trained on
the texts. With --device cpu the same is measured on a CPU.
"""

import argparse
import gzip
import json
import lzma
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thresher.config import PruneConfig
from thresher.core.cost import relative_flops
from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import DTYPES, Reference
from thresher.engine.engine import Engine
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import read_weights
from thresher.engine.windows import batches_of
from thresher.models.attach import gates_of, prune_
from thresher.records import append_record

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "gpu")]
from measuring import made_by  # noqa: E402

OUT = HERE / "gpu" / "end_to_end.jsonl"
# Share of the tokens that mpnet-base trained on QNLI keeps after each layer but the last (experiments/table1, seed 0).
KEPT = (1.0, 1.0, 1.0, 1.0, 0.692, 0.368, 0.041, 0.0, 0.0, 0.0, 0.0)
SHARPER = 5.0  # random weights attend almost evenly; so scores are spread about as widely as a trained model's
LONG_TOKENS = 380
PIPELINE_BATCHES = (32, 64, 128, 256)
Pair = tuple[str, str]


@dataclass(frozen=True)
class Part:
    """What is measured together: the shape of a model, and how many pairs for engines, pipeline and the search."""

    name: str
    width: int
    heads: int
    outputs: int
    count: int
    few: int


PARTS = {
    "qnli": Part("qnli", width=768, heads=12, outputs=2, count=65_536, few=2048),
    "long": Part("long", width=384, heads=12, outputs=1, count=16_384, few=1024),
}


def read_pairs(file: Path) -> list[Pair]:
    """The first two texts of every row: JSON lines, or text with a tab between them; .gz and .xz, too."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(file.suffix, open)(file, "rt", encoding="utf-8") as lines:
        kind = file.name.removesuffix(".gz").removesuffix(".xz").rpartition(".")[2]
        found = []
        for line in lines:
            if kind == "jsonl":
                row = json.loads(line)
                texts = [
                    value for name, value in row.items() if isinstance(value, str) and name not in ("label", "idx")
                ]
            else:
                texts = line.rstrip("\n").split("\t")
            if len(texts) < 2:
                raise SystemExit(f"{file} has a row without two texts: {line[:80]!r}")
            found.append((texts[0], texts[1]))
    return found


def made_up_pairs(count: int) -> list[Pair]:
    """Words of made-up syllables, the frequent ones often, in pairs of QNLI's lengths."""
    draw = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "on")]
    words = ["".join(draw.choice(syllables, draw.integers(1, 4))) for _ in range(20_000)]
    chances = 1 / np.arange(1, len(words) + 1)
    chances /= chances.sum()

    def text(mean: float, least: int) -> str:
        return " ".join(words[i] for i in draw.choice(len(words), least + draw.poisson(mean), p=chances)) + "."

    return [(text(7, 3), text(22, 4)) for _ in range(count)]


def trained_tokenizer(texts: Sequence[str]) -> Any:
    """WordPiece as BERT has it."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=30_522, special_tokens=special, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_input_names=inputs, model_max_length=512, **names)


def long_pairs(pairs: Sequence[Pair], tokenizer: Any, count: int) -> list[Pair]:
    """Each first text with as many second texts, of neighbours, as make about 380 tokens."""
    lengths = [len(ids) for ids in tokenizer([second for _, second in pairs], add_special_tokens=False)["input_ids"]]
    first = [len(ids) for ids in tokenizer([text for text, _ in pairs], add_special_tokens=False)["input_ids"]]
    found: list[Pair] = []
    at = 0
    while len(found) < count:
        number = len(found) % len(pairs)
        room, parts = LONG_TOKENS - 3 - first[number], []
        while room > 0:
            parts.append(pairs[at % len(pairs)][1])
            room -= lengths[at % len(pairs)]
            at += 1
        found.append((pairs[number][0], " ".join(parts)))
    return found


def random_model(part: Part, *, words: int, tiny: bool) -> Any:
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=words,
        hidden_size=64 if tiny else part.width,
        num_hidden_layers=3 if tiny else 12,
        num_attention_heads=2 if tiny else part.heads,
        intermediate_size=4 * (64 if tiny else part.width),
        num_labels=part.outputs,
    )
    model = library.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.mul_(SHARPER)
            layer.attention.self.key.weight.mul_(SHARPER)
    return model


def found_thresholds(
    model: Any, engine: Engine, pairs: Sequence[Pair], config: PruneConfig, device: str
) -> list[float]:
    """With which these texts keep the shares above, layer by layer."""
    layers = model.config.num_hidden_layers
    shares = [KEPT[layer * len(KEPT) // (layers - 1)] for layer in range(layers - 1)]
    plan = PruningPlan(thresholds=(0.0,) * layers, score=config.score, scale=config.scale)
    fitting = PackedExecutor(Reference(read_weights(model), plan, dtype=DTYPES["fp32"], device=device))
    found = fitting.fit([*shares, 0.0], fitting.pack(engine._stream.tokens(pairs)))
    return [0.0 if share == 1 else value for share, value in zip([*shares, 0.0], found, strict=True)]


class Contest:
    """All engines of one part on the same pairs; `work` gives how many texts a call answers."""

    def __init__(self, part: Part, options: argparse.Namespace, pairs: list[Pair], tokenizer: Any) -> None:
        self.part, self.options, self.tokenizer = part, options, tokenizer
        count = min(part.count, options.count or part.count)
        source = pairs if part.name == "qnli" else long_pairs(pairs, tokenizer, min(count, 4096))
        self.pairs = [source[i % len(source)] for i in range(count)]
        self.few = self.pairs[: min(part.few, count)]
        self.model = random_model(part, words=len(tokenizer), tiny=options.tiny)
        made = {"device": options.device, "workers": options.workers}
        if options.device == "cuda":
            made["dtype"] = "fp16"
        dense = Engine.from_model(self.model, tokenizer, **made)
        config = PruneConfig(score="value")
        found = found_thresholds(self.model, dense, self.pairs[:128], config, options.device)
        prune_(self.model, config)
        gates_of(self.model).set_thresholds(found)
        self.engines = {"dense": dense, "pruned": Engine.from_model(self.model, tokenizer, **made)}
        gates_of(self.model).mode = "off"
        self.tokens = dense._stream.tokens(self.pairs)
        self.kept: dict[str, Any] = {}

    def works(self) -> dict[str, Callable[[], int]]:
        found: dict[str, Callable[[], int]] = {}
        if not self.options.no_pipeline:
            found["pipeline"] = self._pipeline()
        for name, engine in self.engines.items():
            engine.warm_up(self.pairs[:4096])
            found[f"thresher-{name}"] = lambda engine=engine, name=name: self._answer(engine, name)
            packed = [engine.executor.pack(each) for each in self._batches(engine)]
            found[f"kernels-{name}"] = lambda engine=engine, packed=packed: self._compute(engine, packed)
        return found

    def cost(self, name: str) -> float:
        """Relative FLOPs on true lengths."""
        kept = self.kept.get(name.partition("-")[2])
        if kept is None:
            return 1.0
        shape = self.engines["dense"].executor.shape
        return round(float(relative_flops(shape, torch.from_numpy(self.tokens.lengths), torch.from_numpy(kept))), 4)

    def stages(self, name: str) -> dict[str, float]:
        """Microseconds for each text of every stage alone, one after the other in one thread, but for those named."""
        engine, texts = self.engines[name], len(self.few)
        stream, executor = engine._stream, engine.executor
        few = self.tokens.between(0, texts)
        numbers = batches_of(few, executor.token_budget, by_length=executor.by_length)
        packed = [executor.pack(few.take(each)) for each in numbers]
        answers = engine.predict_arrays(self.few)
        tokenizing = stream.tokenizing
        reader: dict[str, Any] = {"limit": tokenizing.limit, "cuts": tokenizing.cuts, "pairs": tokenizing.pairs}
        from thresher.tokenizing.read import read_texts

        works: dict[str, Callable[[], object]] = {
            "tokenize_by_call": lambda: self.tokenizer(
                [a for a, _ in self.few], [b for _, b in self.few], truncation=True, max_length=tokenizing.limit
            ),
            "tokenize": lambda: read_texts(tokenizing.reader, self.few, **reader),
            "pack": lambda: [executor.pack(few.take(each)) for each in numbers],
            "compute": lambda: self._compute(engine, packed),
            "hand_out": lambda: list(answers),
        }
        if self.options.device == "cuda":
            works["copy"] = lambda: [each.buffer.to("cuda", non_blocking=True) for each in packed]
        found = {stage: 1e6 * self._least(work) / texts for stage, work in works.items()}
        pairs = self.pairs
        whole = self._least(lambda: list(_tokenized(stream, pairs)))
        found["tokenize_as_the_engine_does"] = 1e6 * whole / len(pairs)
        return {stage: round(value, 2) for stage, value in found.items()}

    def _pipeline(self) -> Callable[[], int]:
        """With the batch size that is fastest on a few of the texts."""
        from transformers import pipeline

        half = torch.float16 if self.options.device == "cuda" else torch.float32
        model = random_model(self.part, words=len(self.tokenizer), tiny=self.options.tiny)
        classify = pipeline(
            "text-classification", model=model.to(self.options.device, half), tokenizer=self.tokenizer,
            device=self.options.device,
        )  # fmt: skip
        items = [{"text": first, "text_pair": second} for first, second in self.few]

        def work(size: int, count: int = len(items)) -> int:
            return len(classify(items[:count], batch_size=size, truncation=True, max_length=512))

        few = max(1, len(items) // 4)
        work(PIPELINE_BATCHES[0], few)
        times = {size: self._least(lambda size=size: work(size, few), rounds=1) for size in PIPELINE_BATCHES}
        best = min(times, key=lambda size: times[size])
        print("pipeline, texts/s by batch size:", {size: round(few / spent) for size, spent in times.items()})
        return lambda: work(best)

    def _answer(self, engine: Engine, name: str) -> int:
        answers = engine.predict_arrays(self.pairs)
        if answers.problems:
            raise SystemExit(f"a text was not answered: {next(iter(answers.problems.values()))}")
        self.kept[name] = answers.kept
        return len(answers)

    def _batches(self, engine: Engine) -> Iterator[Any]:
        """As the engine makes them; on a GPU some of them are enough."""
        executor = engine.executor
        if not executor.by_length:
            for numbers in batches_of(self.tokens, executor.token_budget, by_length=False)[:64]:
                yield self.tokens.take(numbers)
            return
        for start in range(0, len(self.tokens), executor.window):
            window = self.tokens.between(start, min(len(self.tokens), start + executor.window))
            for numbers in batches_of(window, executor.token_budget, by_length=True):
                yield window.take(numbers)

    def _compute(self, engine: Engine, packed: Sequence[Any]) -> int:
        """As many batches in flight as there may be."""
        executor, flying, texts = engine.executor, deque[Any](), 0
        for each in packed:
            if len(flying) >= executor.in_flight:
                texts += len(executor.finish(flying.popleft()).outputs)
            flying.append(executor.launch(each))
        return texts + sum(len(executor.finish(each).outputs) for each in flying)

    @staticmethod
    def _least(work: Callable[[], object], *, rounds: int = 2) -> float:
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            work()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)


def _tokenized(stream: Any, pairs: Sequence[Pair]) -> Iterator[Any]:
    """All pieces through the engine's threads or processes, and nothing else."""
    from thresher.engine.windows import Source

    source = Source(pairs, window=len(pairs), small=True, ahead=True)
    with stream.tokenizing.threads() as pool:
        waiting: deque[Any] = deque()
        while True:
            while len(waiting) < stream.tokenizing.ahead and (piece := source.piece()):
                waiting.append(pool().submit(stream.tokens, piece))
            if not waiting:
                return
            yield waiting.popleft().result()


def measure(part: Part, options: argparse.Namespace, pairs: list[Pair], tokenizer: Any) -> list[dict[str, Any]]:
    contest = Contest(part, options, pairs, tokenizer)
    works = contest.works()
    speeds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.rounds + 1):
        for name, work in works.items():
            began = time.perf_counter()
            texts = work()
            speeds[name].append(texts / (time.perf_counter() - began))
    made = made_by("end_to_end.py", device=options.device)
    rows = []
    for name, found in speeds.items():
        engine = contest.engines.get(name.partition("-")[2])
        row: dict[str, Any] = {"engine": name, "texts": part.name}
        row |= {"texts_per_s": round(float(np.median(found[1:]))), "relative_flops": contest.cost(name)}
        row |= {"rounds": [round(speed) for speed in found[1:]], "count": len(contest.pairs)}
        row["tokens"] = round(float(contest.tokens.lengths.mean()), 1)
        if engine is not None:
            about = engine.describe()
            row |= {"dtype": about["dtype"], "tokenizing": about["tokenizing"]}
        if name.startswith("thresher"):
            row["stages_us"] = contest.stages(name.partition("-")[2])
        rows.append({**row, **made})
        print({key: rows[-1][key] for key in row}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' or '.join(PARTS)}; both if none is named")
    parser.add_argument("--texts", type=Path, help="pairs of texts: .jsonl or tab-separated, also .gz and .xz")
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer of the WordPiece kind")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--workers", type=int, help="tokenizing processes; 0: threads; if not given, as the engine does"
    )
    parser.add_argument("--rounds", type=int, default=3, help="in which all engines take turns, after one to warm up")
    parser.add_argument("--count", type=int, help="at most so many pairs")
    parser.add_argument("--no-pipeline", action="store_true", help="leave the rival out")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script itself")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON lines are added to this file")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"part {unknown[0]!r} is not one of {', '.join(PARTS)}")
    pairs = read_pairs(options.texts) if options.texts else made_up_pairs(4096 if not options.tiny else 64)
    if options.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    else:
        tokenizer = trained_tokenizer([text for pair in pairs[:20_000] for text in pair])
    for name in options.parts or PARTS:
        began = time.perf_counter()
        for row in measure(PARTS[name], options, pairs, tokenizer):
            append_record(options.out, row)
        print(f"part {name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
