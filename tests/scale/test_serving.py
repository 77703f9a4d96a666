"""The server as a Ray Serve deployment: what Ray is asked for, with a stand-in, and the thing itself where it is
installed."""

import gc
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli import tiny
from thresher.errors import ConfigError
from thresher.scale import serving
from thresher.serving.http.app import Options
from thresher.serving.http.server import bound_socket
from thresher.serving.run import Setting


def needs_ray_serve() -> bool:
    return importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray.serve") is None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("ray") / "classes", tiny.classifier_config())


class StandIn:
    """As much of ray.serve as is used."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.build: Callable[[], Any] | None = None

    def ingress(self, build: Callable[[], Any]) -> Callable[[type], type]:
        self.build = build
        return lambda kind: kind

    def deployment(self, **options: Any) -> Callable[[type], Any]:
        self.options = options
        return lambda kind: SimpleNamespace(bind=lambda: kind)


def test_replicas_get_many_requests_at_a_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandIn()
    monkeypatch.setattr(serving, "importlib", SimpleNamespace(import_module=lambda name: ray))
    settings = [Setting(path=str(model), name="classes", device="cpu", dtype="fp32")]
    serving.deployment(settings, options=Options(key=b"secret"), replicas=2, num_cpus=1)
    assert ray.options == {"num_replicas": 2, "max_ongoing_requests": 1000, "ray_actor_options": {"num_cpus": 1}}
    try:
        assert ray.build is not None
        app = ray.build()
        assert "/predict" in app.posts and app.options.key == b"secret"
    finally:
        gc.unfreeze()


def test_without_ray_serve_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(serving, "importlib", SimpleNamespace(import_module=none))
    with pytest.raises(ConfigError, match=r'pip install "thresher\[scale,serve\]" "ray\[serve\]"'):
        serving.deployment([])


SCRIPT = """
import json, os, sys, urllib.request
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray import serve
from thresher.scale.serving import deployment
from thresher.serving.run import Setting
ray.init(include_dashboard=False, num_cpus=2, object_store_memory=2**28, log_to_driver=False)
serve.start(http_options={"port": int(sys.argv[2])})
setting = Setting(path=sys.argv[1], name="classes", device="cpu", dtype="fp32")
serve.run(deployment([setting], num_cpus=1), route_prefix="/")
url = f"http://127.0.0.1:{sys.argv[2]}"
body = json.dumps({"inputs": "the film is good"}).encode()
with urllib.request.urlopen(urllib.request.Request(url + "/predict", data=body), timeout=60) as reply:
    print(json.dumps([reply.headers["x-thresher-dial"], json.loads(reply.read())]))
serve.shutdown()
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(needs_ray_serve(), reason="needs the package ray[serve]: pip install 'ray[serve]'")
def test_a_local_ray_serve_answers(model: Path) -> None:
    with bound_socket("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(model), port], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    dial, labels = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert dial == "1" and {one["label"] for one in labels} == {"negative", "positive"}
