"""Actors: what they are asked for and how parts go to them and come back. With a stand-in for Ray, and with Ray itself
where it is installed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bulk.making import make_models, rows, score, write
from thresher.bulk.scorer import Setting
from thresher.errors import ConfigError, ModelError, RunError
from thresher.jobs.score import ScoreResult
from thresher.scale import actors
from thresher.scale.actors import places
from thresher.workplace import work_of

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the package ray: pip install 'thresher[scale]'"
)


class Died(Exception):
    """RayActorError's stand-in."""


class StandIn:
    """As much of Ray as is used, in this process: calls are done when they are waited for, the newest first."""

    def __init__(self, cpus: float = 2.0) -> None:
        self.exceptions = SimpleNamespace(RayActorError=Died)
        self.cpus, self.up, self.made, self.dies = cpus, False, 0, False

    def is_initialized(self) -> bool:
        return self.up

    def init(self, address: str, **options: Any) -> None:
        if address == "nowhere:1":
            raise ConnectionError("Could not find any running Ray instance\nmore")
        self.up = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does

    def shutdown(self) -> None:
        self.up = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self.cpus}}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, **options: Any) -> Any:
        def wrap(kind: type) -> Any:
            return SimpleNamespace(remote=lambda *given: self._actor(kind(*given)))

        return wrap

    def _actor(self, one: Any) -> Any:
        self.made += 1
        call = {name: SimpleNamespace(remote=self._later(getattr(one, name))) for name in ("about", "compute")}
        return SimpleNamespace(**call)

    def _later(self, method: Any) -> Any:
        return lambda *given: Reference(method, given)

    def wait(self, references: list["Reference"], *, num_returns: int) -> tuple[list[Any], list[Any]]:
        print("(raylet) words of its own")
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference: "Reference") -> Any:
        if self.dies and reference.given:
            raise Died
        return reference.method(*reference.given)


class Reference:
    """A call that is not done yet."""

    def __init__(self, method: Any, given: tuple[Any, ...]) -> None:
        self.method, self.given = method, given


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in, before = StandIn(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(actors, "import_ray", lambda: stand_in)
    yield stand_in
    assert signal.getsignal(signal.SIGTERM) is before, "a job gives signals back"


def both(models: Path, place: Path, **given: Any) -> tuple[ScoreResult, bytes, bytes]:
    """The same rows here and with actors."""
    source = write(place / "in.jsonl", rows())
    score(models / "classes", source, place / "here.jsonl")
    found = score(models / "classes", source, place / "there.jsonl", **{"ray": "local", **given})
    return found, (place / "here.jsonl").read_bytes(), (place / "there.jsonl").read_bytes()


@pytest.mark.parametrize("count", [1, 2, None])
def test_parts_in_any_order_give_the_same_bytes(
    ray: StandIn, count: int | None, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, here, there = both(models, tmp_path, actors=count)
    assert capsys.readouterr().out == "", "what Ray says does not mix with results"
    assert here == there and result.computed == 50
    assert ray.made == (count or 2) and not ray.up


def test_more_actors_than_room_is_said(ray: StandIn, models: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    _, here, there = both(models, tmp_path, actors=5, note=notes.append)
    assert here == there
    assert "5 actors of 1 CPU are asked for, 2 have room now; the others wait for it" in notes


def test_work_of_actors_goes_on_here_and_the_other_way(ray: StandIn, models: Path, tmp_path: Path) -> None:
    source, whole = write(tmp_path / "in.jsonl", rows()), tmp_path / "whole.jsonl"
    score(models / "classes", source, whole)

    def stop(now: Any) -> None:
        if now.rows >= 20:
            raise KeyboardInterrupt

    for first, then in (("local", None), (None, "local")):
        out = tmp_path / f"{first}.jsonl"
        with pytest.raises(KeyboardInterrupt):
            score(models / "classes", source, out, ray=first, progress=stop)
        assert not ray.up
        result = score(models / "classes", source, out, ray=then)
        assert 0 < result.computed < 50
        assert out.read_bytes() == whole.read_bytes()


def test_errors_of_actors_arrive_as_they_are(ray: StandIn, models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    with pytest.raises(ConfigError, match="'fp7'"):
        score(models / "classes", source, out, ray="local", dtype="fp7")
    ray.dies = True
    with pytest.raises(RunError, match="an actor died again and again.*the same command goes on"):
        score(models / "classes", source, out, ray="local")
    assert not ray.up


def test_another_run_on_another_machine_is_refused(
    ray: StandIn, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "run_fingerprint", lambda run: "another")
    source = write(tmp_path / "in.jsonl", rows())
    with pytest.raises(ModelError, match="has other files on .*; copy the run to the same path on every machine"):
        score(models / "classes", source, tmp_path / "out.jsonl", ray="local")


def test_what_cannot_be_is_refused(ray: StandIn, models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    for given, match in (
        ({"ray": "in.jsonl"}, "--ray in.jsonl is no address"),
        ({"ray": "local", "cpus_per_actor": 3}, "no machine has the 3 CPU.*the largest has 2 CPUs"),
        ({"ray": "local", "gpus_per_actor": 1}, "no machine has the 1 CPU and 1 GPU"),
        ({"ray": "local", "cpus_per_actor": -1}, "cpus_per_actor = -1 is below 0"),
    ):
        with pytest.raises(ConfigError, match=match):
            score(models / "classes", source, out, **given)
    with pytest.raises(RunError, match="no Ray at nowhere:1: Could not find any running Ray instance; start it"):
        score(models / "classes", source, out, ray="nowhere:1")
    assert not work_of(out).exists()


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'--ray needs the package ray; run: pip install "thresher\[scale\]"'):
        actors.import_ray()


def test_room_for_actors_is_counted_by_machine() -> None:
    nodes: list[dict[str, float]] = [{"CPU": 5.0}, {"CPU": 16.0, "GPU": 2.0}, {}]
    assert places(nodes, 1, 0) == 21
    assert places(nodes, 3, 0) == 6
    assert places(nodes, 1, 0.5) == 4
    assert places(nodes, 6, 1) == 2
    assert places(nodes, 0.5, 0) == 42
    assert places(nodes, 32, 0) == 0


def command(models: Path, source: Path, out: Path, *more: str) -> list[str]:
    words = ["-m", "thresher", "score", str(models / "classes"), str(source), "--out", str(out), "--json"]
    return [sys.executable, *words, "--dtype", "fp32", "--device", "cpu", "--part-rows", "50", *more]


@needs_ray
@pytest.mark.slow
def test_a_real_ray_gives_the_same_bytes_also_after_kill_9(models: Path, tmp_path: Path) -> None:
    source, here, there = tmp_path / "in.jsonl", tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    source.write_text("".join(json.dumps({**row, "n": i}) + "\n" for i in range(400) for row in rows(50)))
    score(models / "classes", source, here, part_rows=50)
    words = command(models, source, there, "--actors", "2", "--cpus-per-actor", "0.5", "--ray")
    begun = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watch = threading.Timer(600, begun.kill)
    watch.start()
    while begun.poll() is None and len(list(work_of(there).glob("shards/00000/*.part"))) < 3:
        time.sleep(0.05)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    done = subprocess.run(words, capture_output=True, text=True)
    watch.cancel()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 20_000
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize(("cpus", "workers"), [(1, 0), (16, None)])
def test_an_actor_tokenizes_within_its_own_cpus(
    cpus: int, workers: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of four engines on one GPU would otherwise start as many processes as the machine has cores."""
    given: list[Setting] = []
    monkeypatch.setattr(actors, "usable_cores", lambda: 16)
    monkeypatch.setattr(actors, "run_fingerprint", lambda run: "same")
    monkeypatch.setattr(actors, "Scorer", lambda setting: given.append(setting) or SimpleNamespace(about="about"))
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    actors.Worker(Setting(str(tmp_path)), "same", cpus).about()
    assert [setting.workers for setting in given] == [workers]
