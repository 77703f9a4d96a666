"""thresher: teach a transformer encoder which tokens it can drop, then really drop them.

Names load on first use, so that `import thresher` stays quick and touches neither CUDA nor Hugging Face.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thresher import baselines
    from thresher.config import PruneConfig, TrainConfig
    from thresher.engine.engine import Engine
    from thresher.errors import ThresherError
    from thresher.evaluation.explain import explain
    from thresher.evaluation.quality import evaluate
    from thresher.integrations.sentence_transformers import accelerate_, unaccelerate_
    from thresher.jobs.bench import BenchRequest, bench
    from thresher.jobs.calibrate import CalibrateRequest, calibrate
    from thresher.jobs.evaluate import EvaluateRequest, evaluate_run
    from thresher.jobs.explain import ExplainRequest, explain_run
    from thresher.jobs.export import ExportRequest, export
    from thresher.jobs.prune import PruneRequest, prune
    from thresher.jobs.quantize import QuantizeRequest, quantize
    from thresher.jobs.report import ReportRequest, write_report
    from thresher.jobs.score import ScoreRequest, score_files
    from thresher.jobs.search import SearchRequest, search
    from thresher.jobs.serve import ServeRequest, serve
    from thresher.models.attach import gates_of, prune_, unprune_
    from thresher.models.checkpoint import load, save
    from thresher.tasks import load_file_task, load_task
    from thresher.training.progress import Bars
    from thresher.training.trainer import Trainer

__all__ = [
    "Bars",
    "BenchRequest",
    "CalibrateRequest",
    "Engine",
    "EvaluateRequest",
    "ExplainRequest",
    "ExportRequest",
    "PruneConfig",
    "PruneRequest",
    "QuantizeRequest",
    "ReportRequest",
    "ScoreRequest",
    "SearchRequest",
    "ServeRequest",
    "ThresherError",
    "TrainConfig",
    "Trainer",
    "accelerate_",
    "baselines",
    "bench",
    "calibrate",
    "evaluate",
    "evaluate_run",
    "explain",
    "explain_run",
    "export",
    "gates_of",
    "load",
    "load_file_task",
    "load_task",
    "prune",
    "prune_",
    "quantize",
    "save",
    "score_files",
    "search",
    "serve",
    "unaccelerate_",
    "unprune_",
    "write_report",
]

_HOME = {
    "PruneConfig": "thresher.config",
    "TrainConfig": "thresher.config",
    "Engine": "thresher.engine.engine",
    "ThresherError": "thresher.errors",
    "Bars": "thresher.training.progress",
    "Trainer": "thresher.training.trainer",
    "evaluate": "thresher.evaluation.quality",
    "explain": "thresher.evaluation.explain",
    "accelerate_": "thresher.integrations.sentence_transformers",
    "unaccelerate_": "thresher.integrations.sentence_transformers",
    "PruneRequest": "thresher.jobs.prune",
    "prune": "thresher.jobs.prune",
    "SearchRequest": "thresher.jobs.search",
    "search": "thresher.jobs.search",
    "CalibrateRequest": "thresher.jobs.calibrate",
    "calibrate": "thresher.jobs.calibrate",
    "QuantizeRequest": "thresher.jobs.quantize",
    "quantize": "thresher.jobs.quantize",
    "ReportRequest": "thresher.jobs.report",
    "write_report": "thresher.jobs.report",
    "EvaluateRequest": "thresher.jobs.evaluate",
    "evaluate_run": "thresher.jobs.evaluate",
    "ExplainRequest": "thresher.jobs.explain",
    "explain_run": "thresher.jobs.explain",
    "ScoreRequest": "thresher.jobs.score",
    "score_files": "thresher.jobs.score",
    "ServeRequest": "thresher.jobs.serve",
    "serve": "thresher.jobs.serve",
    "ExportRequest": "thresher.jobs.export",
    "export": "thresher.jobs.export",
    "BenchRequest": "thresher.jobs.bench",
    "bench": "thresher.jobs.bench",
    "gates_of": "thresher.models.attach",
    "prune_": "thresher.models.attach",
    "unprune_": "thresher.models.attach",
    "load": "thresher.models.checkpoint",
    "save": "thresher.models.checkpoint",
    "load_file_task": "thresher.tasks",
    "load_task": "thresher.tasks",
}
_ROOMS = ("baselines",)  # whole modules among the public names


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from thresher.records import thresher_version

        return thresher_version()
    if name in _ROOMS:
        return importlib.import_module(f"thresher.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'thresher' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """What there is to use: names that were not loaded yet too, and not what this file happens to import."""
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
