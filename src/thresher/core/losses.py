"""Loss terms of the training stages."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.heads import OF_TOKENS

NOT_COUNTED = -100  # the label of a token that no tag is asked of
NOWHERE = -1e9  # the logit of padding, where no answer can start or end: finite, so that 0 times its logarithm is 0


def keep_regulariser(gates: list[Tensor], *, alive: Tensor, protected: Tensor) -> Tensor:
    """Mean over layers of the mean soft gate over prunable live tokens.

    gates: one (batch, tokens) per layer; alive, protected: boolean (batch, tokens). Padding and protected tokens do not
    count, so that lambda means the same at any length.
    """
    prunable = (alive & ~protected).to(gates[0].dtype)
    count = prunable.sum().clamp(min=1.0)
    return torch.stack([(gate * prunable).sum() / count for gate in gates]).mean()


def budget_term(relative_flops: Tensor, target: float) -> Tensor:
    """Squared distance of the (differentiable) relative FLOPs to the target."""
    return (relative_flops - target) ** 2


def meaning_of(logits: Tensor) -> str:
    """What outputs (batch, outputs) mean where nobody says: a value if there is one, else classes."""
    return "value" if logits.shape[-1] == 1 else "classes"


def task_loss(logits: Tensor, labels: Tensor, *, means: str | None = None, alive: Tensor | None = None) -> Tensor:
    """Distance to the labels, by what outputs mean (`core.heads`). logits: (batch, outputs), labels: (batch,).

    classes: cross-entropy; value: mean squared error; score: cross-entropy of the logit with a label of 0 or 1;
    labels: the mean of that over all of them, labels being (batch, outputs). Embeddings have no labels.

    Of tokens, logits are (batch, tokens, outputs), and alive, boolean (batch, tokens), says which are no padding. span:
    cross-entropy over a text's tokens of the places (batch, 2) where the answer starts and ends; tags: the mean over
    all tokens whose label, (batch, tokens), counts.
    """
    means, logits = means or meaning_of(logits), logits.float()
    if means == "span":
        return F.cross_entropy(_places_only(logits, alive), labels)
    if means == "tags":
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_COUNTED, reduction="sum")
        return total / (labels != NOT_COUNTED).sum().clamp(min=1)
    if means == "value":
        return F.mse_loss(logits.squeeze(-1), labels.float())
    if means == "score":
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1), labels.float())
    if means == "labels":
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    if means == "classes":
        return F.cross_entropy(logits, labels)
    raise ValueError(f"means = {means!r} has no labels to learn from; distil from the dense model")


def distillation_loss(
    logits: Tensor, teacher: Tensor, *, temperature: float, means: str | None = None, alive: Tensor | None = None
) -> Tensor:
    """Distance to the teacher's outputs, by what they mean; both (batch, outputs). 0 where they are the same.

    classes: KL from the softened distribution; labels: the same of each label's probability, in the mean; value and
    score: mean squared error; embedding: 1 - cosine. Of tokens both are (batch, tokens, outputs), and alive, boolean
    (batch, tokens), says which count. span: KL of where an answer starts, and of where it ends, over a text's tokens,
    in the mean; tags: the mean over tokens of their classes' KL.
    """
    means, logits, teacher = means or meaning_of(logits), logits.float(), teacher.float()
    if means in OF_TOKENS:
        return _token_distillation(logits, teacher, temperature=temperature, means=means, alive=alive)
    if means in ("value", "score"):
        return F.mse_loss(logits, teacher)
    if means == "embedding":
        return (1 - F.cosine_similarity(logits, teacher, dim=-1)).mean()
    # temperature^2 keeps the gradient's size independent of the temperature (Hinton et al., 2015).
    if means == "labels":
        target = torch.sigmoid(teacher / temperature)
        entropy = F.binary_cross_entropy_with_logits(teacher / temperature, target)
        return (F.binary_cross_entropy_with_logits(logits / temperature, target) - entropy) * temperature**2
    student = F.log_softmax(logits / temperature, dim=-1)
    wanted = F.log_softmax(teacher / temperature, dim=-1)
    return F.kl_div(student, wanted, reduction="batchmean", log_target=True) * temperature**2


def _token_distillation(
    logits: Tensor, teacher: Tensor, *, temperature: float, means: str, alive: Tensor | None
) -> Tensor:
    """The mean over distributions, which are as many as there are texts times outputs, or tokens."""
    alive = alive if alive is not None else torch.ones_like(logits[..., 0], dtype=torch.bool)
    if means == "span":
        ours, theirs = (F.log_softmax(_places_only(each, alive) / temperature, dim=1) for each in (logits, teacher))
        count: Tensor | int = ours.shape[0] * ours.shape[2]
    else:
        ours, theirs = (F.log_softmax(each / temperature, dim=-1) for each in (logits, teacher))
        count = alive.sum().clamp(min=1)
    apart = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1)
    return apart.masked_fill(~alive, 0.0).sum() / count * temperature**2


def _places_only(logits: Tensor, alive: Tensor | None) -> Tensor:
    """(batch, tokens, outputs), where padding has no chance."""
    return logits if alive is None else logits.masked_fill(~alive.unsqueeze(-1), NOWHERE)


def hidden_distillation_loss(
    states: Sequence[Tensor],
    teacher: Sequence[Tensor],
    *,
    which: str,
    layers: str = "every",
    alive: Tensor,
    kept: Sequence[tuple[Tensor | None, Tensor]] = (),
) -> Tensor:
    """Mean squared error of hidden states, the embeddings' output first and then every layer's.

    states, teacher: (batch, tokens, width) each; alive: boolean (batch, tokens). "first_token" compares the first token
    of all of them, because dropped tokens have no later states; "kept" the tokens that each layer keeps; "embeddings"
    all live tokens of the embeddings' output. Of `layers`, "last" compares the last one alone. `kept` has, for each
    layer, the original positions of what its states hold, (batch, slots), or None if all tokens are at their places,
    and which of that it keeps, boolean (batch, slots).
    """
    if which == "embeddings":
        return F.mse_loss(states[0][alive].float(), teacher[0][alive].float())
    if which == "first_token":
        pairs = list(zip(states, teacher, strict=True))
        found = [F.mse_loss(ours[:, 0].float(), theirs[:, 0].float()) for ours, theirs in pairs]
    else:
        all_of = zip(states[1:], teacher[1:], kept, strict=True)
        found = [_error_of_kept(ours, theirs, *where) for ours, theirs, where in all_of]
    return found[-1] if layers == "last" else torch.stack(found).mean()


def _error_of_kept(ours: Tensor, theirs: Tensor, places: Tensor | None, live: Tensor) -> Tensor:
    """The mean over live tokens. ours: (batch, slots, width), theirs: (batch, tokens, width)."""
    if places is not None:
        theirs = theirs.gather(1, places[:, :, None].expand(-1, -1, theirs.shape[2]))
    errors = (ours.float() - theirs.float()).square().mean(dim=-1)
    return errors.masked_fill(~live, 0.0).sum() / live.sum().clamp(min=1)
