"""A whole search on a tiny model: the chain, the answer, interruption, hopeless trials, time, processes."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.tiny import Recorder, gated_model, keyword_task, quick, tiny_tokenizer, weights_of
from thresher.config import PruneConfig, SearchConfig, TrainConfig
from thresher.errors import ConfigError, RunError
from thresher.models.attach import gates_of
from thresher.tasks.task import Task
from thresher.training.search import chain as search_module
from thresher.training.search import store as search_store
from thresher.training.search import trial as search_trial
from thresher.training.search.chain import Found, search
from thresher.training.search.store import (
    check_identity,
    given_up,
    open_study,
    record,
    requeue_killed,
    shown_number,
    tell,
)
from thresher.training.search.table import statement
from thresher.training.search.trial import Setup, TrialGuide
from thresher.training.trainer import Trainer

TASK = keyword_task(64, selection=200)


def run(
    folder: Path, *, task: Task = TASK, train: TrainConfig | None = None, seen: Recorder | None = None, **settings: Any
) -> Found:
    """A search that ends in seconds: three trials of a few steps, and a limit that most of them meet."""
    wanted = SearchConfig(**{"max_drop": 0.3, "start_flops": 0.8, "max_trials": 3, **settings})
    progress = (lambda: seen) if seen is not None else Recorder
    arguments: dict[str, Any] = {"folder": folder, "finetune": True, "device": "cpu", "progress": progress}
    train = train or quick(method="thresher", max_steps=30, save_seconds=0.0)
    return search(gated_model(), tiny_tokenizer(), task, train, wanted, **arguments)


def states(folder: Path) -> list[str]:
    return [trial.state.name for trial in open_study(folder).get_trials()]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Path, Recorder]:
    folder, seen = tmp_path_factory.mktemp("search") / "run.partial", Recorder()
    return run(folder, seen=seen), folder, seen


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, TASK, PruneConfig(), quick(), share=0.5, device="cpu", deadline=None)


def test_the_answer_is_the_cheapest_within_the_limit(done: tuple[Found, Path, Recorder]) -> None:
    found, _, _ = done
    points = found.report["points"]
    (chosen,) = (point for point in points if point["chosen"])
    assert found.report["within"] and chosen["bound"] <= 0.3
    assert chosen["relative_flops"] == min(point["relative_flops"] for point in points if point["within"])
    for words in ("200 selection rows", "95% interval", "(paired bootstrap)", "80% confidence"):
        assert words in found.report["statement"]


@pytest.mark.parametrize(("max_drop", "words"), [(0.01, "within 1 point with"), (0.02, "within 2 points with")])
def test_a_limit_of_one_point_is_in_the_singular(max_drop: float, words: str) -> None:
    one = [0.1]
    choice, points = SimpleNamespace(index=0, within=False), [SimpleNamespace(relative_flops=0.5)]
    table: Any = SimpleNamespace(
        points=points, drops=one, low=one, high=one, expected=one, bounds=one, choice=choice, front=[0]
    )
    said = statement(table, SearchConfig(max_drop=max_drop), rows=1)
    assert words in said and "drop 10.00 points on 1 selection row" in said


def test_the_model_returned_is_the_one_measured(done: tuple[Found, Path, Recorder]) -> None:
    from thresher.models.predict import predict
    from thresher.tasks.encode import encode, padded_batches

    found, _, _ = done
    (chosen,) = (point for point in found.report["points"] if point["chosen"])
    rows = encode(tiny_tokenizer(), TASK.selection, max_length=32, positions=40)
    batches = padded_batches(rows, pad_id=0)
    labels = [row.label for row in TASK.selection]
    again = predict(found.model, batches, pruned=True)
    assert TASK.score(again.logits.numpy(), labels)["score"] == chosen["score"]
    found.model.load_state_dict({**weights_of(found.model), **found.dense})
    dense = predict(found.model, batches, pruned=False)
    assert TASK.score(dense.logits.numpy(), labels)["score"] == found.report["dense"]["score"]


def test_every_trial_has_its_place_in_the_report(done: tuple[Found, Path, Recorder]) -> None:
    found, folder, seen = done
    trained = [point for point in found.report["points"] if point["dial"] == 1.0]
    assert [(point["target"], point["trained_from"]) for point in trained] == [
        (0.8, None),
        (0.688, 0.8),
        (0.5917, 0.688),
    ]
    for point in found.report["points"]:
        assert point["interval"][0] <= point["drop"] <= point["interval"][1]
        assert abs(point["relative_flops"] - point["target"]) < 0.2
    assert states(folder) == ["COMPLETE"] * 3
    assert [note for note in seen.notes if note.startswith("front")]
    assert not list(folder.rglob("optimizer.safetensors"))


def test_later_trials_are_shorter_and_learn_from_the_dense_model_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Any] = []
    original = Trainer.fit

    def fit(self: Any) -> Any:
        state = original(self)
        starts.append((self.config.soft_epochs, self.config.hard_epochs, state.dense["score"], self.dense_weights()))
        return state

    monkeypatch.setattr(Trainer, "fit", fit)
    seen = Recorder()
    run(tmp_path / "run", seen=seen, max_trials=2)
    (soft, hard, score, dense), (later_soft, later_hard, later_score, later_dense) = starts
    assert (soft, hard, later_soft, later_hard) == (2.0, 3.0, 0.0, 1.5)
    assert score == later_score and all(torch.equal(dense[name], later_dense[name]) for name in dense)
    assert [name for name, _, _ in seen.begun].count("teacher") == 1  # its predictions are kept


# --- interruption ----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As sudden as a kill: nothing between the trial and the test catches it."""


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path, done: tuple[Found, Path, Recorder]) -> None:
    folder = tmp_path / "run"

    class Cut(Recorder):
        """The machine goes off in the middle of the second trial's training."""

        def step(self, **numbers: float | None) -> None:
            super().step(**numbers)
            steps = [total for name, total, _ in self.begun if name == "hard"]
            if len(steps) == 2 and len(self.losses("hard")) > steps[0] + 8:
                raise Killed

    cut = Cut()
    with pytest.raises(Killed):
        run(folder, seen=cut)
    assert states(folder) == ["COMPLETE", "RUNNING"]
    seen = Recorder()
    found = run(folder, seen=seen)
    assert states(folder) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert "finetune" not in [name for name, _, _ in seen.begun]  # the first trial is not repeated
    assert [(total, begun) for name, total, begun in seen.begun if name == "hard"][0] == (12, 6)  # nor the half saved
    measured = ("target", "relative_flops", "drop", "chosen")
    points, wanted = ([{name: p[name] for name in measured} for p in f.report["points"]] for f in (found, done[0]))
    assert points == wanted
    assert "resuming: trial 2, target 0.688, goes on" in seen.notes
    assert [note.partition(":")[0] for note in seen.notes if note.startswith("trial")] == [
        "trial 2 from 0.800, target 0.688",
        "trial 3 from 0.688, target 0.592",
    ]


@pytest.mark.parametrize("first_is_entered", [True, False])
def test_a_trial_that_is_queued_again_keeps_its_number(tmp_path: Path, first_is_entered: bool) -> None:
    study = open_study(tmp_path)

    def ask(target: float) -> Any:
        study.enqueue_trial({"target": target})
        trial = study.ask()
        trial.suggest_float("target", 0.0, 1.0)
        return trial

    if first_is_entered:
        record(study, target=0.8, cost=0.8)
    tell(study, ask(0.688), cost=None, hopeless=False)  # time was up
    tell(study, ask(0.688), cost=0.7, hopeless=False)
    tell(study, ask(0.5917), cost=None, hopeless=True)
    ask(0.6381)
    assert requeue_killed(study) == [0.6381]
    numbers = [shown_number(open_study(tmp_path), target, first=0.8) for target in (0.8, 0.688, 0.5917, 0.6381)]
    assert numbers == [1, 2, 3, 4]


def test_a_search_that_was_killed_after_training_does_not_train_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:

        def stop(*args: Any) -> None:
            raise Killed

        patch.setattr("optuna.Study.tell", stop)
        with pytest.raises(Killed):
            run(folder, max_trials=2)
    seen = Recorder()
    run(folder, max_trials=2, seen=seen)
    assert seen.begun == [] and states(folder) == ["COMPLETE", "FAIL", "COMPLETE"]


def test_a_search_that_began_under_the_methods_former_name_goes_on(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    check_identity(study, {"method": "learned", "seed": 0})
    check_identity(study, {"method": "thresher", "seed": 0})
    with pytest.raises(RunError, match="other settings for: seed"):
        check_identity(study, {"method": "thresher", "seed": 1})


def test_other_settings_do_not_resume(done: tuple[Found, Path, Recorder]) -> None:
    _, folder, _ = done
    with pytest.raises(RunError, match="other settings for: confidence, seed; resume with the same ones"):
        run(folder, confidence=0.7, train=quick(method="thresher", max_steps=30, seed=1))
    with pytest.raises(RunError, match="other settings for: data"):
        run(folder, task=keyword_task(64, selection=199))


def test_a_finished_search_answers_at_once_and_more_trials_go_on(done: tuple[Found, Path, Recorder]) -> None:
    found, folder, _ = done
    seen = Recorder()
    assert run(folder, seen=seen).report == found.report and seen.begun == []


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.journal").write_bytes(b"not a journal\n")
    with pytest.raises(RunError, match=r"study\.journal is damaged .* --overwrite"):
        run(tmp_path)


# --- giving up, time, processes --------------------------------------------------------------------------------------


def test_hopeless_trials_are_given_up_halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "hopeless_score", lambda *given: 2.0)  # no score is as high
    seen = Recorder()
    found = run(tmp_path / "run", seen=seen)
    # The second trial fails, so the third lies between it and the first.
    assert found.report["given_up"] == given_up(open_study(tmp_path / "run")) == [0.688, 0.7419]
    assert [point["target"] for point in found.report["points"]] == [0.8] * 3
    assert any("given up, hopeless" in note for note in seen.notes)
    steps = [total for name, total, _ in seen.begun if name == "hard"]
    assert len(seen.losses("hard")) <= steps[0] + steps[1] // 2 + steps[2] // 2 + 2


def test_a_trial_that_diverges_is_given_up_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, fitted = Trainer.fit, []

    def fit(self: Any) -> Any:
        fitted.append(self)
        if len(fitted) == 2:
            next(self.model.classifier.parameters()).data.fill_(float("nan"))
        return original(self)

    monkeypatch.setattr(Trainer, "fit", fit)
    seen = Recorder()
    found = run(tmp_path / "run", seen=seen)
    assert found.report["given_up"] == [0.688] and states(tmp_path / "run") == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert any("given up, its predictions or gradients are not numbers" in note for note in seen.notes)


def test_a_trial_is_given_up_by_a_score_of_its_hard_stage_only(setup: Setup) -> None:
    guide = TrialGuide(setup, hopeless=0.5)
    assert guide.reason_to_stop("hard", 0.4) == search_trial.HOPELESS
    assert guide.reason_to_stop("hard", 0.6) is guide.reason_to_stop("hard", None) is None
    assert guide.reason_to_stop("finetune", 0.4) is TrialGuide(setup).reason_to_stop("hard", 0.4) is None


def test_time_is_up_in_every_stage(setup: Setup) -> None:
    guide = TrialGuide(replace(setup, deadline=0.0))
    assert {guide.reason_to_stop(stage, None) for stage in ("finetune", "soft", "hard")} == {search_trial.NO_TIME}


def test_when_time_is_up_the_best_so_far_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(search_trial.time, "time", lambda: clock[0])

    class Slow(Recorder):
        """The second trial takes forever."""

        def begin(self, name: str, *, total: int, done: int = 0) -> None:
            super().begin(name, total=total, done=done)
            clock[0] += 1000.0 * ([begun for begun, _, _ in self.begun].count("hard") == 2)

    seen = Slow()
    found = run(tmp_path / "run", seen=seen, budget_minutes=5)
    assert {point["target"] for point in found.report["points"]} == {0.8}
    assert any("given up, time is up" in note for note in seen.notes)


def test_too_little_time_for_the_first_trial_is_an_error_and_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="before the first trial was.*--resume"):
        run(tmp_path / "run", budget_minutes=1e-6)
    assert run(tmp_path / "run", max_trials=1).report["points"]


def test_a_looser_dial_keeps_the_infinite_threshold(done: tuple[Found, Path, Recorder]) -> None:
    assert gates_of(done[0].model).thresholds[-1] == torch.inf


class Backwards(Executor):
    """Two places; the work that came last is done first, when it is waited for."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self._waiting.append((Future(), lambda: work(*args, **options)))
        return self._waiting[-1][0]

    def wait(self, running: Any, return_when: str) -> Any:
        future, work = self._waiting.pop()
        future.set_result(work())
        return SimpleNamespace(done={future})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_trials_that_end_out_of_order_are_not_taken_for_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = Backwards()
    monkeypatch.setattr(search_module, "executor_of", lambda workers: backwards)
    monkeypatch.setattr(search_module, "wait", backwards.wait)
    found = run(tmp_path / "run", workers=2, max_trials=4)
    targets = [trial.params["target"] for trial in open_study(tmp_path / "run").get_trials()]
    assert len(targets) == len(set(targets)) == 4
    assert {point["target"] for point in found.report["points"]} | set(found.report["given_up"]) == set(targets)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_refusals_come_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"workers = 5000 is more than the \d+ cores? here"):
        run(tmp_path, workers=5000)
    with pytest.raises(ConfigError, match="method = 'random': a search is for method thresher"):
        run(tmp_path, train=quick(method="random"))
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match="without accelerate launch"):
            run(tmp_path)
    monkeypatch.setattr(search_store, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs the package optuna; run: pip install "thresher\[search\]"'):
        run(tmp_path)
    assert not any(tmp_path.iterdir())
