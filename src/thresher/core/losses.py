"""Loss terms of the training stages."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


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


def task_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, or mean squared error when there is one output. logits: (batch, outputs), labels: (batch,)."""
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.float().squeeze(-1), labels.float())
    return F.cross_entropy(logits.float(), labels)


def distillation_loss(logits: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    """KL from the teacher's softened distribution, or mean squared error for regression. Both (batch, outputs)."""
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.float(), teacher.float())
    student = F.log_softmax(logits.float() / temperature, dim=-1)
    target = F.log_softmax(teacher.float() / temperature, dim=-1)
    # temperature^2 keeps the gradient's size independent of the temperature (Hinton et al., 2015).
    return F.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def hidden_distillation_loss(
    states: Sequence[Tensor], teacher: Sequence[Tensor], *, which: str, alive: Tensor
) -> Tensor:
    """Mean squared error of hidden states, the embeddings' output first and then every layer's.

    states, teacher: (batch, tokens, width) each; alive: boolean (batch, tokens). "first_token" compares the first token
    of all of them, because dropped tokens have no later states; "embeddings" all live tokens of the embeddings' output.
    """
    if which == "embeddings":
        return F.mse_loss(states[0][alive].float(), teacher[0][alive].float())
    pairs = zip(states, teacher, strict=True)
    return torch.stack([F.mse_loss(ours[:, 0].float(), theirs[:, 0].float()) for ours, theirs in pairs]).mean()
