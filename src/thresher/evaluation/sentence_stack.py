"""What users of rerankers and embedding models run today: sentence-transformers, from the dense model's folder.

`CrossEncoder.predict` and `SentenceTransformer.encode` as they are, with their own sorting inside a call, forward and
pooling. Only tokenization is taken from them, as from every row of the benchmark: they find their tokens ready.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.evaluation.rivals import Row, padded

Outputs = NDArray[np.float32]


class ReadyText(str):
    """Stands for a text whose tokens are known; as long as these are many, which is what the library sorts by."""

    row: Row

    @staticmethod
    def of(row: Row) -> "ReadyText":
        found = ReadyText("." * len(row.input_ids))
        found.row = row
        return found


def open_sentence_transformers(
    folder: Path, *, means: str, pad_id: int, dtype: str, device: str
) -> Callable[[Sequence[Row]], Outputs]:
    """Rows to outputs (rows, outputs): a reranker's raw logits, or embeddings as the library scales and cuts them."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from thresher.engine.backends.reference import DTYPES

    kind = CrossEncoder if means == "score" else SentenceTransformer
    model: Any = kind(str(folder), device=device, trust_remote_code=False).to(DTYPES[dtype])

    def preprocess(inputs: Sequence[Any], prompt: str | None = None, **more: Any) -> dict[str, Any]:
        rows = [(text[0] if isinstance(text, tuple) else text).row for text in inputs]
        return {name: torch.from_numpy(value) for name, value in padded(rows, pad_id).items()}

    model.preprocess = preprocess
    if means == "score":
        identity = torch.nn.Identity()

        def predict(rows: Sequence[Row]) -> Outputs:
            pairs = [(ReadyText.of(row), "") for row in rows]
            found = model.predict(pairs, batch_size=len(rows), activation_fn=identity, show_progress_bar=False)
            return np.asarray(found, dtype=np.float32).reshape(len(rows), -1)

        return predict

    def encode(rows: Sequence[Row]) -> Outputs:
        texts = [ReadyText.of(row) for row in rows]
        return np.asarray(model.encode(texts, batch_size=len(rows), show_progress_bar=False), dtype=np.float32)

    return encode
