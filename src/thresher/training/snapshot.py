"""Interrupted work resumes: the whole training state as safetensors and JSON, written atomically, nothing pickled.

Random numbers need no saving: every step seeds its own from (seed, stage, step, process).
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from thresher.config import with_methods_today
from thresher.errors import RunError
from thresher.models.checkpoint import replacing_folder
from thresher.records import write_json

STATE = "state"
REMEMBERED = "remembered.json"


class Memory:
    """What a method must know again after an interruption, in a file beside the saved state."""

    def __init__(self, work: Path | None, *, resuming: bool, writes: bool) -> None:
        self._file = None if work is None else work / REMEMBERED
        self._resuming, self._writes = resuming, writes
        if self._file is not None and writes and not resuming:
            self._file.unlink(missing_ok=True)  # by another run

    def remember(self, value: Any) -> None:
        if self._file is not None and self._writes:
            write_json(self._file, value)

    def recall(self) -> Any:
        file = self._file if self._resuming else None
        return json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else None


def write_snapshot(work: Path, groups: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> None:
    """Save named groups of tensors (model, optimizer, best...) and a JSON description as one unit."""
    with replacing_folder(work / STATE) as folder:
        for name, tensors in groups.items():
            plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
            save_file(plain, folder / f"{name}.safetensors")
        write_json(folder / "about.json", about)


def read_snapshot(work: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    folder = work / STATE
    if not (folder / "about.json").is_file():
        raise RunError(f"nothing to resume in {work}; start without --resume")
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        if "identity" in about:
            about["identity"] = with_methods_today(about["identity"])
        return {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}, about
    except (ValueError, SafetensorError) as error:
        raise RunError(f"the saved state in {folder} is damaged ({error}); start anew with --overwrite") from error


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's moments under their parameters' names."""
    return {
        f"{name}|{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        name, key = full_name.rsplit("|", 1)
        parameter = parameters[name]
        # AdamW counts its steps on the CPU in the plain loop, and on the device when fused.
        here = key == "step" and not optimizer.defaults.get("fused")
        optimizer.state[parameter][key] = value if here else value.to(parameter.device)
