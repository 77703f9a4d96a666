"""Hugging Face, padded, in several ways; the unpadded rival is thresher.evaluation.unpadded."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Work = Callable[[], object]
PAD = 1


def padded(texts: Sequence[Sequence[int]], *, pinned: bool, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Right-padded ids and mask on the host."""
    widest = width or max(map(len, texts))
    ids = torch.full((len(texts), widest), PAD)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    mask = (ids != PAD).long()
    return (ids.pin_memory(), mask.pin_memory()) if pinned else (ids, mask)


def hugging_face(model: Any, batches: Sequence[tuple[Tensor, Tensor]], device: str) -> Work:
    """Copies in, forward and copy out of one batch, or of several smaller ones."""

    @torch.inference_mode()
    def work() -> list[Tensor]:
        results = []
        for ids, mask in batches:
            inputs = {
                "input_ids": ids.to(device, non_blocking=True),
                "attention_mask": mask.to(device, non_blocking=True),
            }
            results.append(model(**inputs).logits)
        return [result.float().cpu() for result in results]

    return work


def sorted_batches(texts: Sequence[Sequence[int]], *, pinned: bool, parts: int = 4) -> list[tuple[Tensor, Tensor]]:
    """The same texts by length, in up to four batches, so that little of each is padding."""
    ordered = sorted(texts, key=len)
    size = -(-len(ordered) // min(parts, len(ordered)))
    return [padded(ordered[i : i + size], pinned=pinned) for i in range(0, len(ordered), size)]
