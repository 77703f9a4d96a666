"""The search's memory: an optuna study in one journal file, read again after a kill."""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from thresher.config import SearchConfig
from thresher.errors import ConfigError, RunError
from thresher.methods import with_methods_today
from thresher.models.attach import encoder_shape
from thresher.tasks.splits import fingerprint
from thresher.tasks.task import Example
from thresher.training.search.trial import Setup
from thresher.training.state import FREE_TO_CHANGE

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "study.journal"
NAME = "thresher"


def check_installed() -> None:
    for name in ("optuna", "matplotlib"):
        if find_spec(name) is None:
            raise ConfigError(f'a search needs the package {name}; run: pip install "thresher[search]"')


def open_study(folder: Path) -> "Study":
    """The study in `folder`, made if need be."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        return optuna.create_study(storage=storage, study_name=NAME, load_if_exists=True)
    except ValueError as error:
        raise RunError(f"{folder / JOURNAL} is damaged ({error}); start anew with --overwrite") from error


def record(study: "Study", *, target: float, cost: float) -> None:
    """Enter a trial that ran outside the queue."""
    from optuna.distributions import FloatDistribution
    from optuna.trial import create_trial

    known = create_trial(params={"target": target}, distributions={"target": FloatDistribution(0.0, 1.0)}, value=cost)
    study.add_trial(known)


def tell(study: "Study", trial: "Trial", *, cost: float | None, hopeless: bool) -> None:
    """Enter how a trial of the queue ended; one that time cut off has neither cost nor verdict."""
    from optuna.trial import TrialState

    if cost is not None:
        study.tell(trial, cost)
    else:
        study.tell(trial, state=TrialState.PRUNED if hopeless else TrialState.FAIL)


def identity_of(setup: Setup, settings: SearchConfig, model: Any, *, finetune: bool) -> dict[str, Any]:
    """What must be the same for a search to go on; targets differ by trial, and time, trials and workers may change."""
    free = (*FREE_TO_CHANGE, "budget_minutes", "workers", "max_trials", "target_flops", "lambda_")
    chosen = {**setup.train.to_dict(), **settings.to_dict()}
    return {
        **{name: value for name, value in chosen.items() if name not in free},
        "prune settings": setup.prune.to_dict(),
        "model": [model.config.model_type, *encoder_shape(model).numbers()],
        "weights": _weights_digest(model),
        "finetune": finetune,
        "data": _rows_digest(setup.task.train, setup.task.selection, *([setup.task.more] if setup.task.more else [])),
    }


def check_identity(study: "Study", identity: dict[str, Any]) -> None:
    """A search goes on only with the settings, model and rows it began with."""
    before = study.user_attrs.get("identity")
    if before is None:
        study.set_user_attr("identity", identity)
        return
    before = with_methods_today(before)
    changed = sorted(name for name, value in identity.items() if before.get(name) != value)
    if changed:
        raise RunError(
            f"the interrupted search had other settings for: {', '.join(changed)}; resume with the same ones"
        )


def requeue_killed(study: "Study") -> list[float]:
    """Trials that were running when their process died are queued again; returns their targets."""
    from optuna.trial import TrialState

    killed = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in killed:
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(_asked_for(trial), user_attrs=trial.user_attrs)
    return [_asked_for(trial)["target"] for trial in killed]


def shown_number(study: "Study", target: float, *, first: float) -> int:
    """A trial's number as users see it, from the search's `first` target on.

    Optuna numbers a trial anew each time it is queued. Its target tells which one it is: no two trials share one.
    """
    known = [trial.params or _asked_for(trial) for trial in study.get_trials(deepcopy=False)]
    # The first trial is missing where the search was killed after measuring it and before entering it here.
    in_order = dict.fromkeys([first, *(params["target"] for params in known)])
    return list(in_order).index(target) + 1


def waiting(study: "Study") -> list[float]:
    """Targets of queued trials, in the order in which they will be taken."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return [_asked_for(trial)["target"] for trial in trials]


def _asked_for(trial: "FrozenTrial") -> dict[str, float]:
    """What the trial was queued with; its own parameters are empty until it has begun."""
    return dict(trial.system_attrs["fixed_params"])


def given_up(study: "Study") -> list[float]:
    """Targets of trials that were hopeless."""
    from optuna.trial import TrialState

    return [float(trial.params["target"]) for trial in study.get_trials(False, (TrialState.PRUNED,))]


def _rows_digest(*splits: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for rows in splits:
        for row in rows:
            group = "" if row.group is None else row.group
            digest.update(fingerprint(row) + repr(row.label).encode() + group.encode("utf-8", "surrogatepass"))
        digest.update(b"end of split")
    return digest.hexdigest()


def _weights_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
