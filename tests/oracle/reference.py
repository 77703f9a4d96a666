"""Read the oracle's cases and run our model on them, reproducing the reference's quirks here and nowhere else.

Small cases lie in cases/, whole ones and more of them in a folder outside the repository, if there is one.

The quirks: scores divided by heads x padded length S, a layer whose threshold is exactly 0 never prunes, [CLS] is not
protected, a threshold of at least 1e-5 in hard mode, and a regulariser that averages over padding.
"""

import json
import lzma
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaForSequenceClassification

import thresher
from thresher.baselines.topk import retain_shares
from thresher.config import PruneConfig
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.models.rules import TopShare

FOLDER = Path(os.environ.get("THRESHER_ORACLE", Path(__file__).parents[3] / "shared" / "oracle"))
SMALL = Path(__file__).parent / "cases"
SHARED_LAYERS = 4
THRESHOLDS = "roberta.thresher_gates.thresholds"


@dataclass
class Case:
    name: str
    settings: dict[str, Any]
    params: dict[str, Tensor]
    io: dict[str, Tensor]

    @property
    def layers(self) -> int:
        return int(self.settings["L"])

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if "32" in self.settings["dtype"] else torch.float64

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.dtype == torch.float32 else 1e-10

    @property
    def soft(self) -> bool:
        return str(self.settings["mode"]).startswith("soft")

    @property
    def topk(self) -> bool:
        return self.settings["prune_mode"] == "topk"

    @property
    def mean_normalised(self) -> bool:
        """The paper's literal 1/n: our scale "paper". Otherwise 1/S: our scale "relative" with thresholds times S."""
        return "meannorm" in self.name or self.settings.get("normalisation") == "mean"

    @property
    def unit(self) -> float:
        """How many of our units one unit of the reference's score is."""
        return 1.0 if self.mean_normalised else float(self.settings["S"])

    def offsets(self) -> Tensor:
        """(L,) learnable part of the thresholds, in the reference's unit."""
        name = "roberta.encoder.layer.{}.attention.self.pruner.keep_threshold"
        zero = torch.zeros((), dtype=self.dtype)
        return torch.stack(
            [self.params.get(name.format(i), zero).to(self.dtype).reshape(()) for i in range(self.layers)]
        )

    def thresholds(self, offsets: Tensor) -> Tensor:
        """(L,) effective thresholds in our unit; never-pruning layers at minus infinity."""
        base = self.io["threshold_base"].to(self.dtype)
        effective = base + offsets
        floored = effective if self.soft else effective.clamp(min=1e-5)
        prunes = torch.tensor([f"layer{i}.scores" in self.io for i in range(self.layers)])
        return torch.where(prunes, floored * self.unit, torch.full_like(floored, -math.inf))


def load_cases() -> list[Case]:
    return [*small_cases(), *whole_cases()]


def small_cases() -> list[Case]:
    """Of one model, whose float32 weights are exact in float64 too; one case has four layers more on top."""
    shared, deeper = (unpacked(SMALL / f"{name}.safetensors.xz") for name in ("params", "deeper"))
    found = []
    for path in sorted(SMALL.glob("*.json")):
        settings = json.loads(path.read_text(encoding="utf-8"))
        case = Case(path.stem, settings, {}, unpacked(path.with_suffix(".io.safetensors.xz")))
        weights = {**shared, **deeper} if case.layers > SHARED_LAYERS else shared
        case.params = {
            name: value.to(case.dtype) for name, value in weights.items() if not (case.topk and "pruner" in name)
        }
        found.append(case)
    return found


def unpacked(file: Path) -> dict[str, Tensor]:
    return load(lzma.decompress(file.read_bytes()))


def whole_cases() -> list[Case]:
    cases = []
    for path in sorted(FOLDER.glob("*.json")):
        stem = path.with_suffix("")
        cases.append(
            Case(
                name=f"{stem.name}, whole",
                settings=json.loads(path.read_text(encoding="utf-8")),
                params=load_file(f"{stem}.params.safetensors"),
                io=load_file(f"{stem}.io.safetensors"),
            )
        )
    return cases


def build_model(case: Case) -> RobertaForSequenceClassification:
    """A RoBERTa with the case's weights and our gates in the case's mode."""
    weights = {name: value for name, value in case.params.items() if "pruner" not in name}
    config = RobertaConfig(
        vocab_size=case.settings["vocab"],
        hidden_size=case.settings["d"],
        num_hidden_layers=case.layers,
        num_attention_heads=case.settings["heads"],
        intermediate_size=weights["roberta.encoder.layer.0.intermediate.dense.weight"].shape[0],
        max_position_embeddings=weights["roberta.embeddings.position_embeddings.weight"].shape[0],
        type_vocab_size=weights["roberta.embeddings.token_type_embeddings.weight"].shape[0],
        layer_norm_eps=case.settings["layer_norm_eps"],
        pad_token_id=case.settings["pad_id"],
        num_labels=case.settings["labels"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = RobertaForSequenceClassification(config).to(case.dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("position_ids" in name or "token_type_ids" in name for name in missing)
    scale = "paper" if case.mean_normalised else "relative"
    thresher.prune_(model, PruneConfig(scale=scale, protect=("none",), collapse_last=False, ramp="plain"))
    gates = gates_of(model).to(case.dtype)
    gates.set_mode("soft" if case.soft else "hard", soft_mask="plain")
    gates.temperature = case.settings["temperature"] * case.unit
    if case.topk:
        gates.rule = TopShare(retain_shares(case.settings["token_keep_rate"], layers=case.layers))
    return model.train("train" in case.settings["mode"])


def run(case: Case, model: nn.Module, offsets: Tensor) -> tuple[Any, Trace]:
    """Forward with thresholds as a function of the offsets, so that gradients reach them."""
    inputs = {name: case.io[name] for name in ("input_ids", "attention_mask")}
    outputs = torch.func.functional_call(
        model, {THRESHOLDS: case.thresholds(offsets)}, kwargs={**inputs, "output_hidden_states": True}
    )
    trace = gates_of(model).trace
    assert trace is not None
    return outputs, trace


def losses(case: Case, logits: Tensor, trace: Trace, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The reference's task loss and its regulariser: sum over layers of the mean mask, padding included."""
    task = nn.functional.cross_entropy(logits, case.io["labels"])
    masks = [
        torch.sigmoid((scores - threshold) / (case.settings["temperature"] * case.unit)).mean()
        for scores, threshold in zip(trace.scores, case.thresholds(offsets), strict=True)
        if not math.isinf(threshold.item())
    ]
    return task, torch.stack(masks).sum() if masks else torch.zeros((), dtype=case.dtype)
