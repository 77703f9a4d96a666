"""The servers that people write: FastAPI around transformers or onnxruntime, padded, with and without dynamic batching.

python benchmarks/serve_rivals.py MODEL --kind plain|batching|onnx --port 9000
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

KINDS = ("plain", "batching", "onnx")
MOST, WAIT_S = 32, 0.005  # texts of a batch, and how long the first of them waits for others: the usual settings

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


def with_onnxruntime(folder: Path, limit: int) -> tuple[Compute, dict[int, str]]:
    """int8 weights, activations quantized as they come, as onnxruntime's users do it."""
    from transformers import AutoConfig, AutoTokenizer

    from thresher.evaluation.rivals import make_onnx, make_onnx_int8, open_onnxruntime

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def arrays(texts: list[str]) -> Any:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="np")
        return {name: np.asarray(value, np.int64) for name, value in batch.items()}

    with tempfile.TemporaryDirectory() as work:
        whole, small = Path(work) / "whole.onnx", Path(work) / "int8.onnx"
        make_onnx(folder, whole, arrays(["a film", "a longer text about a film"]))
        make_onnx_int8(whole, small)
        forward = open_onnxruntime(small, threads=torch.get_num_threads())
    return lambda texts: forward(arrays(texts)), AutoConfig.from_pretrained(folder).id2label


def make_app(compute: Compute, names: dict[int, str], *, batching: bool) -> Any:
    from fastapi import FastAPI

    app = FastAPI()
    pool = ThreadPoolExecutor(1)
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
            rows = await loop.run_in_executor(pool, compute, [text for text, _ in batch])
            for (_, future), row in zip(batch, rows, strict=True):
                if not future.done():
                    future.set_result(row)

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
    options = parser.parse_args()
    make = with_onnxruntime if options.kind == "onnx" else with_transformers
    compute, names = make(options.model, options.max_length)
    compute(["a film"])
    app = make_app(compute, names, batching=options.kind != "plain")
    uvicorn.run(app, port=options.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
