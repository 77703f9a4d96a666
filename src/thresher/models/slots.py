"""Where live tokens lie while a masked model leaves dropped ones out of its tensors, batch by batch.

Masking computes every layer for all tokens, dropped or not. For training and evaluation it is enough to keep as many
slots as the text that kept most needs: the same numbers for less work. (The engine, which serves, has no padding.)
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

STEP = 8  # slots come in multiples: libraries prepare for every new shape


@dataclass(frozen=True)
class Slots:
    """places: the original position of the token in every slot, live: the slots that hold one; (batch, slots) each."""

    places: Tensor
    live: Tensor

    @staticmethod
    def of(alive: Tensor) -> "Slots":
        """A slot for every token. alive: boolean (batch, tokens)."""
        return Slots(torch.arange(alive.shape[1], device=alive.device).expand_as(alive), alive)

    def spread(self, values: Tensor, tokens: int) -> Tensor:
        """(batch, slots) -> (batch, tokens): every value at its token's place, zero where there is none."""
        empty = values.new_zeros(len(values), tokens)
        return empty.scatter_add(1, self.places, values.masked_fill(~self.live, 0))

    def narrowed(self, keep: Tensor, *, most: int | None) -> "tuple[Slots, Tensor | None]":
        """The slots of the kept tokens in their old order, and the order of the present ones (batch, slots), those that
        go on in front, or None where as many slots are needed as before.

        keep: boolean (batch, tokens). `most` is what a text keeps at most, for those who know without looking.
        """
        stays = keep.gather(1, self.places) & self.live
        if most is None:
            most = int(stays.sum(dim=1).max())
        width = 1 if most == 1 else -(-most // STEP) * STEP
        if width >= stays.shape[1]:
            return Slots(self.places, stays), None
        live, order = stays.to(torch.uint8).sort(dim=1, descending=True, stable=True)
        return Slots(self.places.gather(1, order[:, :width]), live[:, :width].bool()), order

    def bias(self, whole: Tensor) -> Tensor:
        """What a bias by position (batch, heads, tokens, tokens), alike for all texts, is for the tokens in slots."""
        heads, tokens = whole.shape[1:3]
        pairs = self.places[:, :, None] * tokens + self.places[:, None, :]
        return F.embedding(pairs, whole[0].reshape(heads, -1).t()).permute(0, 3, 1, 2)


def taken(states: Tensor, index: Tensor) -> Tensor:
    """The states (batch, slots, width) of some slots: (batch, fewer, width)."""
    if index.shape[1] == 1:
        return states[:, :1]  # whoever is left alone is the first token, in the first slot
    return gathered(states, index)


def gathered(states: Tensor, index: Tensor) -> Tensor:
    """The states (batch, slots, width) of any slots (batch, some): (batch, some, width)."""
    return states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2]))


@dataclass
class Behind:
    """What the slots held that went, for heads that read dropped tokens, too: every token goes once, or stays."""

    places: list[Tensor] = field(default_factory=list)  # (batch, some) each
    states: list[Tensor] = field(default_factory=list)  # (batch, some, width) each

    def add(self, places: Tensor, states: Tensor) -> None:
        self.places.append(places)
        self.states.append(states)

    def with_last(self, slots: Slots, states: Tensor) -> Tensor:
        """(batch, tokens, width): all tokens' last states in their places; `states` are of the slots that are left."""
        places = torch.cat([*self.places, slots.places], dim=1)
        return gathered(torch.cat([*self.states, states], dim=1), places.argsort(dim=1))
