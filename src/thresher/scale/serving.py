"""The server on many machines: the same application as a Ray Serve deployment, with an engine in each replica."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thresher.errors import ConfigError
from thresher.serving.house import House
from thresher.serving.memory import keep_what_stays
from thresher.serving.run import Setting

if TYPE_CHECKING:
    from thresher.serving.http.app import Options

# Ray Serve would let a replica have 5 requests at a time; our queue decides who waits, and makes batches of them.
ONGOING = 1000


def deployment(
    settings: Sequence[Setting],
    *,
    options: "Options | None" = None,
    replicas: int = 1,
    ongoing: int = ONGOING,
    **actor: Any,
) -> Any:
    """For `ray.serve.run`. options: the key that clients must send, and limits of bodies; `actor`: what each replica
    needs, such as num_cpus=2 or num_gpus=1.

    Every replica loads the runs from the same path, as `thresher serve` would.
    """
    try:
        serve: Any = importlib.import_module("ray.serve")
    except ImportError as error:
        raise ConfigError('this needs Ray Serve; run: pip install "thresher[scale,serve]" "ray[serve]"') from error
    chosen = list(settings)

    def build() -> Any:
        from thresher.serving.http.app import App

        app = App(House(chosen), options)
        keep_what_stays()
        return app

    class Thresher:
        """What answers is the application."""

    asked: dict[str, Any] = {"num_replicas": replicas, "max_ongoing_requests": ongoing, "ray_actor_options": actor}
    return serve.deployment(**asked)(serve.ingress(build)(Thresher)).bind()
