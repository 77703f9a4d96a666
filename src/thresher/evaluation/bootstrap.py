"""How sure a pruned model's drop is on rows that took no part in its making."""

from typing import Any

from torch import Tensor

from thresher.evaluation.quality import encoded_rows
from thresher.models.heads import head_of
from thresher.models.predict import device_of, predict
from thresher.tasks.bootstrap import Drop, paired_drop
from thresher.tasks.encode import padded_batches
from thresher.tasks.task import Task


def held_out_drop(
    model: Any,
    tokenizer: Any,
    task: Task,
    dense: dict[str, Tensor],
    *,
    split: str,
    max_length: int | None,
    dense_threshold: float = 0.0,
) -> Drop:
    """The drop of a model with gates against the weights `dense`, with its 95% interval; the model is left as found.
    Each withholds answers by its own null threshold."""
    data = encoded_rows(model, tokenizer, task, task.test[split], max_length=max_length)
    batches = padded_batches(data, pad_id=tokenizer.pad_token_id, device=device_of(model))
    own = {name: value.clone() for name, value in model.state_dict().items()}
    pruned = predict(model, batches, pruned=True).logits.numpy()
    model.load_state_dict({**own, **dense})
    whole = predict(model, batches, pruned=False).logits.numpy()
    model.load_state_dict(own)
    truth = task.spec.truth(task.test[split], dense=whole, data=data)
    return paired_drop(
        task.spec,
        whole,
        pruned,
        truth.with_threshold(dense_threshold),
        pruned_labels=truth.with_threshold(head_of(model).threshold),
    )
