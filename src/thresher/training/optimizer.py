"""Parameter groups: matrices decay, biases and norms do not, thresholds have a learning rate of their own."""

from typing import Any

import torch
from torch import Tensor, nn

from thresher.config import TrainConfig
from thresher.models.attach import gates_of


def make_optimizer(model: Any, config: TrainConfig, *, lr: float, learn_thresholds: bool) -> torch.optim.AdamW:
    """AdamW over what this stage trains; freezes the word embeddings if the configuration says so."""
    embeddings: nn.Embedding = model.get_input_embeddings()
    embeddings.weight.requires_grad_(not config.freeze_embeddings)
    gates = gates_of(model)
    gate_ids = {id(parameter) for parameter in gates.parameters()}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in gate_ids]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.ndim >= 2], "lr": lr, "weight_decay": config.weight_decay},
        {"params": [p for p in weights if p.ndim < 2], "lr": lr, "weight_decay": 0.0},
    ]
    if learn_thresholds:
        groups.append({"params": gates.learned(), "lr": config.threshold_lr, "weight_decay": 0.0})
    if weights[0].device.type != "cuda":
        return torch.optim.AdamW(groups)
    for group in groups:  # rates in tensors, which a recorded step reads anew
        group["lr"] = torch.tensor(group["lr"], device=weights[0].device)
    return torch.optim.AdamW(groups, fused=True, capturable=True)


def set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
