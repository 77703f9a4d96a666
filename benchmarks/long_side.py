"""One side of long.py's race against another commit: engines with given thresholds, and how long a batch takes them.

Runs with either commit's package, so it uses only what both have, and nothing of this folder.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> None:
    """Answers "ENGINE BATCH", numbers, with seconds."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from thresher.core.plan import PruningPlan
    from thresher.engine.choose import Choice
    from thresher.engine.scales import load_scales
    from thresher.engine.weights import read_weights

    torch.set_num_threads(job["threads"])
    weights = read_weights(AutoModelForSequenceClassification.from_pretrained(job["model"]).eval())
    scales = tuple(load_scales(Path(job["scales"])))
    built: dict[int, Any] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        number, batch = (int(word) for word in line.split())
        engine = job["engines"][number]
        if number not in built:
            choice = Choice("cpu", "cpu", engine["dtype"], "asked for", scales=scales)
            plan = PruningPlan(thresholds=tuple(engine["thresholds"]), score=job["score"])
            built = {number: choice.build(weights, plan)}  # one at a time: memory is not to grow with their number
        ids, types = job["batches"][batch]
        began = time.perf_counter()
        built[number].compute(ids, types)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
