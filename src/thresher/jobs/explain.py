"""The explaining job: which layer of a run dropped which token of a text, and its decision beside the dense model's."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.config import trained_length
from thresher.errors import ConfigError, DataError
from thresher.jobs.request import Request, asked
from thresher.quiet import quiet
from thresher.text import is_blank, shown

if TYPE_CHECKING:
    from thresher.evaluation.explain import Explanation


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(Request):
    """What `explain_run` is asked for: a run's folder and a text; `pair` is the second one, for models of pairs."""

    PATHS: ClassVar[tuple[str, ...]] = ("run",)

    run: Path
    text: str
    pair: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, one in (("text", self.text), ("pair", self.pair)):
            if not isinstance(one, str) and (one is not None or name == "text"):
                raise ConfigError(f"{name} = {shown(one)} is of type {type(one).__name__}; give a string")
            if one is not None and is_blank(one):
                raise DataError("the text is empty; give at least one word")


@dataclass(frozen=True, kw_only=True)
class ExplainResult:
    """What the run does with the text, and what the model does that pruning started from; None where that is gone."""

    pruned: "Explanation"
    dense: "Explanation | None"

    def to_dict(self) -> dict[str, Any]:
        dense = None if self.dense is None else _decided(self.dense, beside=self.pruned)
        return {**self.pruned.to_dict(), "dense": dense}


def explain_run(run: str | Path | ExplainRequest, **given: Any) -> ExplainResult:
    """Explain one text, read to the length that texts had in training.

    `given` are fields of `ExplainRequest`: `explain_run("runs/sst2", text="a gripping film")`. For a model in memory
    there is `thresher.explain`.
    """
    from thresher.evaluation.explain import explain, unpruned
    from thresher.evaluation.lineup import dense_of
    from thresher.models.checkpoint import load
    from thresher.models.pairs import check_pairs

    request = asked(ExplainRequest, run, given, name="run")
    with quiet():
        checkpoint = load(request.run)
        check_pairs(checkpoint.manifest, given_pairs=request.pair is not None, name=request.run)
        length = trained_length(checkpoint.manifest)
        texts = (request.text, request.pair)
        pruned = explain(checkpoint.model, checkpoint.tokenizer, *texts, max_length=length)
        folder = dense_of(request.run, checkpoint).folder
        if folder == request.run:
            return ExplainResult(pruned=pruned, dense=None)
        dense = unpruned(folder, checkpoint)
        return ExplainResult(pruned=pruned, dense=explain(*dense, *texts, max_length=length))


def _decided(dense: "Explanation", *, beside: "Explanation") -> dict[str, Any]:
    """What the dense model decides, for JSON."""
    if dense.embedding is not None:
        return {"cosine": beside.cosine_to(dense)}
    if dense.entities is not None:
        return {"entities": dense.to_dict()["entities"]}
    names: tuple[str, ...] = ("answer", "start", "end", "margin") if dense.answer is not None else ()
    names = ("score",) if dense.score is not None else ("labels",) if dense.labels is not None else names
    return {name: getattr(dense, name) for name in names or ("label", "probability", "value")}
