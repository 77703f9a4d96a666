"""The servers that people write: FastAPI around transformers or onnxruntime, padded, with and without dynamic batching.

python benchmarks/serve_rivals.py MODEL --kind plain|batching|onnx --port 9000

Batching as a careful author would do it: what came while the last batch was computed is sorted by length and cut where
padding would make more than PADDED tokens, so that a short text is not padded to a long one and does not wait for it.
"""

import argparse
import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

KINDS = ("plain", "batching", "onnx")
MOST, WAIT_S = 32, 0.005  # texts that are taken at a time, and how long the first waits for others: usual settings
PADDED = 1024  # tokens of a batch with its padding; more are not faster on two cores

Compute = Callable[[list[str]], Any]  # texts to logits (texts, classes)


def with_transformers(folder: Path, limit: int) -> tuple[Compute, dict[int, str]]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    @torch.inference_mode()
    def compute(texts: list[str]) -> Any:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        return model(**batch).logits.float().numpy()

    return compute, model.config.id2label


def with_onnxruntime(folder: Path, limit: int, work: Path) -> tuple[Compute, dict[int, str]]:
    """int8 weights, activations quantized as they come, as onnxruntime's users do it; the graph stays in `work`."""
    from transformers import AutoConfig, AutoTokenizer

    from thresher.evaluation.rivals import make_onnx, make_onnx_int8, open_onnxruntime

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def arrays(texts: list[str]) -> Any:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="np")
        return {name: np.asarray(value, np.int64) for name, value in batch.items()}

    whole, small = work / "whole.onnx", work / "int8.onnx"
    if not small.exists():
        make_onnx(folder, whole, arrays(["a film", "a longer text about a film"]))
        make_onnx_int8(whole, small)
    forward = open_onnxruntime(small, threads=torch.get_num_threads())
    return lambda texts: forward(arrays(texts)), AutoConfig.from_pretrained(folder).id2label


def cut(texts: list[str]) -> list[list[int]]:
    """Numbers of texts, by length, in batches of similar ones; four characters are about a token."""
    batches: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda each: len(texts[each])):
        tokens = len(texts[number]) / 4
        similar = batches and tokens <= 32 + 1.5 * len(texts[batches[-1][0]]) / 4
        if not similar or (len(batches[-1]) + 1) * tokens > PADDED:
            batches.append([])
        batches[-1].append(number)
    return batches


def make_app(compute: Compute, names: dict[int, str], pool: ThreadPoolExecutor, *, batching: bool) -> Any:
    from fastapi import FastAPI

    app = FastAPI()
    waiting: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()

    def answer(logits: Any) -> list[dict[str, Any]]:
        shares = np.exp(logits - logits.max())
        shares = (shares / shares.sum()).tolist()
        return sorted(({"score": s, "label": names[i]} for i, s in enumerate(shares)), key=lambda each: -each["score"])

    async def collect() -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await waiting.get()]
            until = loop.time() + WAIT_S
            while len(batch) < MOST and (left := until - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(waiting.get(), left))
                except TimeoutError:
                    break
            for numbers in cut([text for text, _ in batch]):
                rows = await loop.run_in_executor(pool, compute, [batch[number][0] for number in numbers])
                for number, row in zip(numbers, rows, strict=True):
                    if not batch[number][1].done():
                        batch[number][1].set_result(row)

    tasks: list[Any] = []

    @app.post("/predict")
    async def predict(body: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        if not batching:
            return answer((await loop.run_in_executor(pool, compute, [body["inputs"]]))[0])
        if not tasks:
            tasks.append(loop.create_task(collect()))
        future: asyncio.Future[Any] = loop.create_future()
        waiting.put_nowait((body["inputs"], future))
        return answer(await future)

    return app


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of a classifier")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is made of the model")
    options = parser.parse_args()
    # The thread that computes also loads: two threads with OpenMP's helpers would slow each other down, as in
    # thresher/serving/threads.py.
    pool = ThreadPoolExecutor(1)
    if options.kind == "onnx":
        made = pool.submit(with_onnxruntime, options.model, options.max_length, options.work)
    else:
        made = pool.submit(with_transformers, options.model, options.max_length)
    compute, names = made.result()
    pool.submit(compute, ["a film"]).result()
    app = make_app(compute, names, pool, batching=options.kind != "plain")
    uvicorn.run(app, port=options.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
