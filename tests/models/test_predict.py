import pytest
import torch

from tests.models.families import LAYERS, logits_of, one, pruned_model, ragged, tiny_model
from thresher.errors import ModelError
from thresher.models.attach import gates_of
from thresher.models.predict import Batch, Predictions, predict


def shuffled_batches(model: torch.nn.Module) -> list[Batch]:
    """Rows 0 to 4 in two batches and out of order, with labels that the model must not see."""
    inputs = ragged(model)
    parts = []
    for rows in ([3, 0, 4], [2, 1]):
        batch = {name: value[rows] for name, value in inputs.items()}
        parts.append((rows, {**batch, "labels": torch.zeros(len(rows), dtype=torch.long)}))
    return parts


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("mode", ["off", "soft", "hard"])
def test_rows_come_back_in_order(mode: str, pruned: bool) -> None:
    model = pruned_model("bert", changes={"dropout": 0.5}).train()
    gates_of(model).set_mode(mode)
    seen: list[tuple[int, int]] = []
    found = predict(model, shuffled_batches(model), pruned=pruned, on_batch=lambda done, all: seen.append((done, all)))
    assert model.training and gates_of(model).mode == mode, "mode and training flag are left as found"
    assert seen == [(1, 2), (2, 2)]
    assert found.rows.tolist() == [0, 1, 2, 3, 4]
    assert found.lengths.tolist() == [11, 1, 7, 3, 16]
    assert found.logits.dtype == torch.float32

    reference = pruned_model("bert") if pruned else tiny_model("bert")
    inputs = ragged(model)
    for row in range(5):
        torch.testing.assert_close(found.logits[row], logits_of(reference, one(inputs, row))[0].float())
    assert (found.kept is not None) == pruned
    if found.kept is not None:
        assert found.kept.shape == (5, LAYERS)
        assert (found.kept[:, 0] <= found.lengths).all() and (found.kept[4] < 16).any()


def test_merge_by_hand() -> None:
    def part(*rows: int) -> Predictions:
        numbers = torch.tensor(rows)
        return Predictions(numbers, numbers[:, None].float(), numbers + 1, numbers[:, None] * 2)

    whole = Predictions.merge([part(2, 0), part(3, 1)])
    assert whole.rows.tolist() == [0, 1, 2, 3]
    assert whole.logits.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert whole.lengths.tolist() == [1, 2, 3, 4]
    assert whole.kept is not None and whole.kept.tolist() == [[0], [2], [4], [6]]


def test_a_model_without_gates_is_refused() -> None:
    model = tiny_model("bert")
    with pytest.raises(ModelError, match="the model has no gates"):
        predict(model, shuffled_batches(model), pruned=True)
