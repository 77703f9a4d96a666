"""Which layer dropped which token of one text, and what the model then decided."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from thresher.core.cost import relative_flops
from thresher.models.attach import encoder_shape, length_in_training
from thresher.models.predict import evaluating
from thresher.tasks.encode import collate, encode, usable_positions
from thresher.tasks.task import Example


@dataclass(frozen=True)
class Explanation:
    """dropped_at[i] is the layer (counted from 1) that dropped token i, or None if it survived all of them.

    pieces[i] is token i for people: as text, with a space in front where a word begins.
    For a regression `label` is empty and `probability` None; `value` holds the prediction.
    """

    tokens: list[str]
    dropped_at: list[int | None]
    kept_per_layer: list[int]
    layers: int
    label: str
    probability: float | None
    value: float | None
    relative_flops: float
    truncated: bool
    pieces: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def explain(
    model: Any, tokenizer: Any, text: str, pair: str | None = None, *, max_length: int | None = None
) -> Explanation:
    """Run one text (or pair) through hard pruning and report every decision.

    It is truncated to `max_length` tokens, or where texts were in training, or else to what the model can take.
    """
    if max_length is None:
        max_length = length_in_training(model)
    data = encode(
        tokenizer,
        [Example(text=text, pair=pair, label=0)],
        max_length=max_length,
        positions=usable_positions(model.config),
    )
    batch = collate(data.rows, pad_id=tokenizer.pad_token_id)
    device = next(model.parameters()).device
    inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
    with evaluating(model, "hard") as gates:
        logits = model(**inputs).logits[0].float().cpu()
        trace = gates.trace
    assert trace is not None  # the forward pass above leaves one
    alive = torch.stack(trace.alive)[:, 0].cpu()  # (layers + 1, tokens)
    lengths, kept = trace.lengths().cpu(), trace.kept().cpu()
    layers = len(alive) - 1
    survived = alive.long().sum(dim=0) - 1  # how many layers each token came out of
    regression = logits.shape[0] == 1
    probabilities = torch.softmax(logits, dim=-1)
    best = int(probabilities.argmax())
    tokens = tokenizer.convert_ids_to_tokens(data.rows[0].input_ids)
    return Explanation(
        tokens=tokens,
        dropped_at=[None if count == layers else int(count) + 1 for count in survived.tolist()],
        kept_per_layer=kept[0].tolist(),
        layers=layers,
        label="" if regression else str(model.config.id2label[best]),
        probability=None if regression else float(probabilities[best]),
        value=float(logits[0]) if regression else None,
        relative_flops=float(relative_flops(encoder_shape(model), lengths, kept)),
        truncated=data.truncated > 0,
        pieces=readable(tokenizer, tokens),
    )


def readable(tokenizer: Any, tokens: Sequence[str]) -> list[str]:
    """The tokens as text, with a space in front where a word begins, whatever marks the tokenizer writes them with.

    ␣ stands for a token of spaces, and � for one that is a part of a character.
    """
    edges = {token for token in tokenizer.all_special_tokens if token != tokenizer.unk_token}
    pieces: list[str] = []
    for before, token in pairwise(["", *tokens]):
        text = f" {token}" if token in edges else _after_a_letter(tokenizer, token)
        begins = text[:1].isspace() or before in edges  # the first token of a text need not say that it begins a word
        pieces.append(" " * begins + (text.strip() or "␣"))
    return pieces


def _after_a_letter(tokenizer: Any, token: str) -> str:
    """What a token adds to a text: its decoder joins, cuts or decodes bytes, but drops spaces at a text's beginning."""
    text: str = tokenizer.convert_tokens_to_string(["a", token])
    if text == f"a {token}":  # also what a tokenizer without a decoder says
        return token.removeprefix("##") if token.startswith("##") else f" {token}"
    return text.removeprefix("a")
