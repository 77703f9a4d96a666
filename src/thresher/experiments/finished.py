"""Finished runs at work: what every validation row keeps, layer by layer, and whether its class is right."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.trained import trained_run

if TYPE_CHECKING:
    from thresher.models.checkpoint import Checkpoint

_opening = threading.Lock()  # transformers' loader is not made for threads, and rows are measured in several


@dataclass(frozen=True)
class Traces:
    """tokens: (rows, layers + 1), a row's length and what each layer keeps of it; right: (rows,); `about` the run."""

    tokens: NDArray[np.int64]
    right: NDArray[np.bool_]
    manifest: dict[str, Any]
    about: Row


@contextmanager
def opened(run: Path) -> Iterator["Checkpoint"]:
    """A run on the device that this machine has, one at a time."""
    from thresher.hardware import choose_device
    from thresher.models.checkpoint import load

    with _opening:
        checkpoint = load(run)
        checkpoint.model.to(choose_device()[0])
        yield checkpoint


def traced(key: Key, setting: Setting) -> Traces | None:
    """Train, or take the finished run that is there, and follow the validation rows through it; None as trained_run.

    The run stays in the work folder, for the next experiment that looks at it.
    """
    from thresher.tasks import load_task

    run = trained_run(key, setting)
    if run is None:
        return None
    task = load_task(key["task"], data=setting.data_folder())
    with opened(run) as checkpoint:
        return follow(checkpoint, next(iter(task.test.values())))


def follow(checkpoint: "Checkpoint", examples: list[Any]) -> Traces:
    from thresher.core.cost import relative_flops
    from thresher.models.attach import encoder_shape
    from thresher.models.defaults import positions_of
    from thresher.models.predict import predict
    from thresher.tasks.encode import encode, padded_batches

    model, tokenizer, manifest = checkpoint.model, checkpoint.tokenizer, checkpoint.manifest
    limit = manifest["recipe"]["max_length"]
    data = encode(tokenizer, examples, max_length=limit, positions=positions_of(model, limit))
    found = predict(model, padded_batches(data, pad_id=tokenizer.pad_token_id), pruned=True)
    assert found.kept is not None  # the model prunes
    right = found.logits.argmax(dim=-1).numpy() == np.array([row.label for row in data.rows])
    return Traces(
        tokens=np.column_stack([found.lengths.numpy(), found.kept.numpy()]),
        right=right,
        manifest=manifest,
        about={
            "rows": len(right),
            "accuracy": float(right.mean()),
            "relative_flops": float(relative_flops(encoder_shape(model), found.lengths, found.kept)),
            **origin(manifest),
        },
    )


def origin(manifest: dict[str, Any]) -> Row:
    """What a record says of the training."""
    where = manifest["provenance"]
    return {"train_seconds": manifest["seconds"], "device": where["device"], "versions": where["versions"]}
