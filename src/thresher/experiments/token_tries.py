"""Two things that heads which read every token might gain from, tried in training alone: no engine knows them.

    python -m thresher.experiments.token_tries exits prune MODEL --task squad_v2 ...

`exits` gives every layer's leavers an output layer of their own, copies of the model's at first. `guarded` reads the
model's output layer in front of every layer, too, and keeps tokens that it already takes for the start or the end of
an answer; a small loss teaches it to read there. Both are method thresher otherwise. The runs are measured and then
removed; a saved one lacks what was tried.
"""

import runpy
import sys
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from thresher.core.losses import task_loss
from thresher.errors import ConfigError
from thresher.methods import TABLE, Entry
from thresher.models.attach import gates_of
from thresher.models.registry import family_of
from thresher.training.objective import Loss
from thresher.training.thresher import Thresher

LIKELY = 0.05  # a token that is the start or the end with a higher probability stays
EARLY = 0.1  # weight of the loss in front of every layer


class Tried(Thresher):
    """What they share: they are for answers, and the run says what was tried."""

    tried: ClassVar[str]

    def begin(self) -> None:
        if self.run.means != "span":
            raise ConfigError(f"'{self.tried}' is tried on answers, and the model gives {self.run.means}")
        super().begin()

    def about(self) -> dict[str, Any]:
        return {**super().about(), "tried": self.tried}


class Exits(Tried):
    """An output layer for the tokens that each layer drops, and one for those that reach the end."""

    tried = "exits"

    def begin(self) -> None:
        super().begin()
        model = self.run.model
        model.add_module("exit_outputs", ExitOutputs(model.qa_outputs, exits=self.run.shape.layers + 1))

        def by_exit(outputs: nn.Module, given: tuple[Tensor], made: Tensor) -> Tensor:
            gates = gates_of(model)
            if gates.mode == "off" or gates.trace is None:
                return made
            passed = torch.stack([alive.long() for alive in gates.trace.alive[1:]]).sum(dim=0)
            found: Tensor = model.exit_outputs(given[0], passed)
            return found

        model.qa_outputs.register_forward_hook(by_exit)


class ExitOutputs(nn.Module):
    """Copies of an output layer, one for each number of layers that a token may have passed."""

    def __init__(self, outputs: nn.Linear, *, exits: int) -> None:
        super().__init__()
        self.exits = exits
        self.weight = nn.Parameter(outputs.weight.detach().repeat(exits, 1))  # (exits x outputs, width)
        self.bias = nn.Parameter(outputs.bias.detach().repeat(exits))

    def forward(self, states: Tensor, passed: Tensor) -> Tensor:
        """states: (batch, tokens, width), passed: (batch, tokens) -> (batch, tokens, outputs)."""
        found = nn.functional.linear(states, self.weight, self.bias)
        found = found.view(*passed.shape, self.exits, -1)
        chosen = passed[..., None, None].expand(*passed.shape, 1, found.shape[-1])
        return found.gather(2, chosen).squeeze(2)


class Guarded(Tried):
    """Likely ends of an answer stay, whatever their score."""

    tried = "guarded"

    def begin(self) -> None:
        super().begin()
        self._early: list[Tensor] = []
        self._always: Tensor | None = None
        self.gates.watched = True
        base = self.run.model.base_model
        for layer in family_of(self.run.model).layers(base):
            layer.register_forward_pre_hook(self._before_layer, with_kwargs=True)

    def _before_layer(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        gates = self.gates
        if gates.mode != "hard" or gates.trace is None:
            return
        if not gates.trace.scores:  # the first layer reads words that have seen nothing yet
            self._always = gates.trace.protected
            return
        assert self._always is not None  # the first layer comes first
        states = args[0] if args else kwargs["hidden_states"]
        logits = self.run.model.qa_outputs(states).float()
        if torch.is_grad_enabled():
            self._early.append(logits)
        gates.trace.protected = self._always | likely(logits.detach(), gates.trace.alive[-1])

    def hard_loss(self, model: nn.Module, batch: dict[str, Tensor], *, teacher: nn.Module | None) -> Loss:
        self._early.clear()
        loss = super().hard_loss(model, batch, teacher=teacher)
        assert isinstance(loss, Loss)  # one part, as method thresher has it
        alive = batch["attention_mask"].bool()
        early = [task_loss(logits, batch["labels"], means="span", alive=alive) for logits in self._early]
        self._early.clear()
        return Loss(loss.total + EARLY * torch.stack(early).mean(), loss.flops, loss.kept)


def likely(logits: Tensor, alive: Tensor) -> Tensor:
    """Live tokens that are the start or the end of an answer with a probability above LIKELY.

    logits: (batch, tokens, 2), alive: (batch, tokens) -> boolean (batch, tokens).
    """
    shares = logits.masked_fill(~alive[..., None], float("-inf")).softmax(dim=1)
    return (shares > LIKELY).any(dim=-1) & alive


TRIES = {"exits": "Exits", "guarded": "Guarded"}


def main(words: list[str]) -> None:
    """`thresher` with these words after the first, which names what takes the place of method thresher."""
    name, *rest = words or [""]
    if name not in TRIES:
        raise SystemExit(f"'{name}' is not one of: {', '.join(TRIES)}")
    home = f"thresher.experiments.token_tries:{TRIES[name]}"
    TABLE["thresher"] = Entry(home, score=TABLE["thresher"].score)
    sys.argv = [sys.argv[0], *rest]
    runpy.run_module("thresher", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
