"""thresher.prune from Python: the same run as the command's, from keywords, a request or rows in memory."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.jobs.listening import Listener
from thresher.errors import ConfigError, DataError, RunError
from thresher.jobs.places import alone

# tests.cli.tiny.QUICK, as keywords.
QUICK: dict[str, Any] = {
    "max_steps": 2,
    "batch_size": 8,
    "target_flops": 0.6,
    "precision": "fp32",
    "device": "cpu",
}


def told(folder: Path) -> dict[str, Any]:
    """What thresher.json says, but for when and how long."""
    return {name: value for name, value in tiny.manifest(folder).items() if name not in ("provenance", "seconds")}


def assert_same_run(ours: Path, theirs: Path) -> None:
    assert told(ours) == told(theirs)
    weights = tiny.weights(theirs)
    assert all(torch.equal(value, weights[name]) for name, value in tiny.weights(ours).items())
    assert tiny.tree(ours) == tiny.tree(theirs)


def test_python_makes_the_run_that_the_command_makes(
    stock: Stock, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = thresher.prune(stock.head, out=str(tmp_path / "run"), train=str(stock.rows), **QUICK)
    assert capsys.readouterr() == ("", ""), "a job prints nothing"
    assert_same_run(tmp_path / "run", finished)
    assert result is not None
    manifest = tiny.manifest(tmp_path / "run")
    found = result.to_dict()
    assert found == {"out": str(tmp_path / "run"), **{name: manifest[name] for name in found if name != "out"}}
    assert result.history == manifest["history"]
    assert result.quality["held_out"]["pruned"].relative_flops == pytest.approx(0.6, abs=0.2)
    assert thresher.gates_of(result.model).thresholds.tolist() == [float(value) for value in manifest["thresholds"]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.seconds = 0.0  # type: ignore[misc]


def test_a_request_and_rows_in_memory_make_it_too(stock: Stock, finished: Path, tmp_path: Path) -> None:
    settings = {name: value for name, value in QUICK.items() if name != "device"}
    task = thresher.load_file_task(stock.rows)
    request = thresher.PruneRequest(
        model=str(stock.head), out=tmp_path / "run", task=task, settings=settings, device="cpu"
    )
    thresher.prune(request)
    assert_same_run(tmp_path / "run", finished)
    with pytest.raises(ConfigError, match="the task is given with its rows; leave out test"):
        thresher.prune(stock.head, out=tmp_path / "other", task=task, test=stock.test)
    with pytest.raises(RunError, match="already holds a run"):
        thresher.prune(request)
    with pytest.raises(ConfigError, match="'lr' is given beside a PruneRequest; put it into the request"):
        thresher.prune(request, lr=1e-4)


def test_prune_in_place_and_a_trainer_learn_the_same(stock: Stock, finished: Path, tmp_path: Path) -> None:
    """Nobody has to say the method twice, or to know its score."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(stock.head)
    tokenizer = transformers.AutoTokenizer.from_pretrained(stock.head)
    thresher.prune_(model)
    settings = {name: value for name, value in QUICK.items() if name != "device"}
    task = thresher.load_file_task(stock.rows)
    thresher.Trainer(model, tokenizer, task, thresher.TrainConfig(**settings), device="cpu").fit()
    thresher.save(model, tokenizer, tmp_path / "run")
    ours, theirs = tiny.manifest(tmp_path / "run"), tiny.manifest(finished)
    assert {name: ours[name] for name in ("prune", "thresholds", "recipe", "task")} == {
        name: theirs[name] for name in ("prune", "thresholds", "recipe", "task")
    }
    weights = tiny.weights(finished)
    assert all(torch.equal(value, weights[name]) for name, value in tiny.weights(tmp_path / "run").items())


def test_progress_and_notes_are_told(stock: Stock, tmp_path: Path) -> None:
    listener, notes = Listener(), []
    thresher.prune(stock.head, out=tmp_path / "run", train=stock.rows, progress=listener, note=notes.append, **QUICK)
    assert [line.split(":")[0] for line in notes] == ["data", "recipe default", "training in fp32 on cpu"]
    assert notes[1] == "recipe default: method thresher, scores by value, 0.6 of the FLOPs"
    assert listener.stages["hard"] == 4, "two steps of its own, and two of the soft stage that it does not have"
    assert listener.stages["held_out: dense"] > 0 and listener.stages["held_out: pruned"] > 0
    assert any(line.startswith("dense: selection score") for line in listener.notes)


def test_without_another_listener_notes_go_where_progress_is_shown(stock: Stock, tmp_path: Path) -> None:
    listener = Listener()
    thresher.prune(stock.head, out=tmp_path / "run", train=stock.rows, progress=listener, **QUICK)
    assert listener.notes[0].startswith("data: ")


def test_the_libraries_are_quiet_only_for_the_time_of_the_job(stock: Stock, tmp_path: Path) -> None:
    transformers.logging.set_verbosity_info()
    thresher.prune(stock.head, out=tmp_path / "run", train=stock.rows, **QUICK)
    assert transformers.logging.get_verbosity() == transformers.logging.INFO


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"targt_flops": 0.5}, "unknown option 'targt_flops'; PruneRequest has: task, data"),
        ({"settings": {"colour": 1}}, "unknown setting 'colour'; known settings: recipe, method"),
        ({"soft_mask": "plain"}, "soft_mask is a setting of method ltp; method thresher does not read it"),
        ({"finetune": "perhaps"}, "finetune = 'perhaps' is not one of: auto, always, never"),
        ({"device": "tpu"}, "device = 'tpu' is not one of: auto, cpu, cuda"),
        ({"train": None}, "give either --task NAME or --train FILE"),
        ({"resume": True, "overwrite": True}, "give one of them"),
    ],
)
def test_what_cannot_be_asked_for(given: dict[str, Any], says: str, stock: Stock, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        thresher.prune(stock.head, **{"out": tmp_path / "run", "train": stock.rows, **given})
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_do_not_write_one_run(stock: Stock, tmp_path: Path) -> None:
    with alone(tmp_path / "run"), pytest.raises(RunError, match="another run is being written to"):
        thresher.prune(stock.head, out=tmp_path / "run", train=stock.rows, **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_reranker_and_the_order_of_classes_from_python(stock: Stock, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--rerank is for rerankers and --embed for embedding models"):
        thresher.prune(stock.head, out=tmp_path / "run", train=stock.rows, rerank=True, embed=True)
    with pytest.raises(DataError, match="name all of them"):
        thresher.prune(stock.head, out=tmp_path / "run", train=stock.rows, class_names=["positive", "neutral"])
    assert list(tmp_path.iterdir()) == []
