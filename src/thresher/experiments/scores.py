"""Which score finds the tokens that matter: the dense model as it is, pruned without training, against itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.experiments.trained import dense_model

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "score", "rule", "target", "seed")
SCORES, RULES = ("attention", "value"), ("threshold", "top-k")
FITTED_ON = 384  # training rows, without their labels
FALLS_OVER = 5 / 12  # of the layers


def keys(config: dict[str, Any]) -> list[Key]:
    return [
        {"task": task, "model": model, "score": score, "rule": rule, "target": target, "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for task in config["tasks"]
        for target in config["targets"]
        for score in SCORES
        for rule in RULES
    ]


def measure(key: Key, setting: Setting) -> Row | None:
    """Shares of tokens that fall through the layers and cost the target; what is kept by them, and what changes."""
    from thresher.tasks import load_task

    folder = setting.data_folder()
    dense = dense_model(key, setting, rows=["--task", key["task"], "--data", str(folder)])
    if dense is None:
        return None
    with setting.place() as free:
        return compared(dense, load_task(key["task"], data=folder), key) if free else None


def compared(dense: Path, task: Any, key: Key) -> Row:
    """Divergence and agreement of the pruned model with the dense one on the validation rows."""
    from thresher.config import PruneConfig
    from thresher.core.cost import relative_flops
    from thresher.core.losses import distillation_loss
    from thresher.hardware import choose_device
    from thresher.models.attach import encoder_shape, gates_of, prune_
    from thresher.models.checkpoint import load_dense
    from thresher.models.defaults import positions_of
    from thresher.models.predict import predict
    from thresher.models.rules import TopShare
    from thresher.tasks.encode import encode, padded_batches
    from thresher.training.budget import measured_flops, scale_to_target
    from thresher.training.falling import FallingShares

    model, tokenizer = load_dense(dense)
    model.to(choose_device()[0])
    prune_(model, PruneConfig(score=key["score"]))
    gates, shape = gates_of(model), encoder_shape(model)

    def batches(rows: Any) -> Any:
        data = encode(tokenizer, rows, max_length=128, positions=positions_of(model, 128))
        return padded_batches(data, pad_id=tokenizer.pad_token_id)

    tested, fitted_on = batches(next(iter(task.test.values()))), batches(task.train[:FITTED_ON])
    wanted = predict(model, tested, pruned=False).logits
    fall = FallingShares(gates, width=FALLS_OVER * shape.layers, centre=key["target"] * shape.layers)
    scale_to_target(fall, lambda: measured_flops(model, fitted_on), key["target"], lambda flops: None)
    gates.rule = TopShare(fall.fitted.shares).to(model.device) if key["rule"] == "top-k" else None
    gates.set_thresholds(fall.fitted.thresholds() if key["rule"] == "threshold" else [0.0] * shape.layers)
    found = predict(model, tested, pruned=True)
    assert found.kept is not None  # pruned=True records them
    return {
        "divergence": float(distillation_loss(found.logits, wanted, temperature=1.0)),
        "agreement": float((found.logits.argmax(dim=-1) == wanted.argmax(dim=-1)).double().mean()),
        "relative_flops": float(relative_flops(shape, found.lengths, found.kept)),
        "shares": [round(share, 4) for share in fall.fitted.shares],
    }


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    return [page]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """One line for every task and cost, one column for every score and rule: agreement, divergence."""
    columns = [(score, rule) for score in SCORES for rule in RULES]
    lines = []
    for task, model, target in dict.fromkeys((row["task"], row["model"], row["target"]) for row in rows):
        own = {
            (row["score"], row["rule"]): row
            for row in rows
            if (row["task"], row["model"], row["target"]) == (task, model, target)
        }
        cells = [
            f"{100 * own[column]['agreement']:.1f}%, {own[column]['divergence']:.4f} @ "
            f"{own[column]['relative_flops']:.3f}"
            if column in own
            else ""
            for column in columns
        ]
        lines.append([config["tasks"][task]["name"], model, f"{target:g}", *cells])
    return markdown_table(["task", "model", "target", *(f"{score}, {rule}" for score, rule in columns)], lines)
