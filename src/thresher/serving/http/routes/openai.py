"""OpenAI's embeddings."""

import base64
from typing import Any

import numpy as np

from thresher.serving.http.call import Call
from thresher.serving.http.routes.tei import check_reply, embeddable, vectors
from thresher.serving.http.schemas import OpenAIEmbeddings


async def embeddings(given: OpenAIEmbeddings, call: Call) -> Any:
    run = call.choose(("embedding",), given.model)
    items = embeddable(given.input)
    check_reply(run, vectors=len(items))
    answers = await call.compute(items)
    found = vectors(answers, normalize=None, dimensions=given.dimensions)
    if given.encoding_format == "base64":
        rows: list[Any] = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in found]
    else:
        rows = np.asarray(found, float).tolist()
    tokens = int(answers.tokens.sum())
    return {
        "object": "list",
        "data": [{"object": "embedding", "embedding": row, "index": index} for index, row in enumerate(rows)],
        "model": given.model or run.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
