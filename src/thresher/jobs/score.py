"""The scoring job: whole files through an engine, which can be ended at any moment and goes on where it was."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.engine.checks import check_max_length
from thresher.errors import ConfigError
from thresher.jobs.places import alone
from thresher.jobs.request import Note, Request, asked
from thresher.quiet import quiet
from thresher.workplace import expanded

if TYPE_CHECKING:
    from thresher.bulk.rows import Columns
    from thresher.bulk.work import WorkDone


@dataclass(frozen=True, kw_only=True)
class ScoreRequest(Request):
    """What `score_files` is asked for: a run's folder, or any other that `Engine.load` takes; `inputs`, a file, folder
    or pattern, or several; and `out`, a file for one file, otherwise a folder.

    `rerank` says that a model's one output is a reranker's score, where its folder does not. `dimensions`: the numbers
    of an embedding that are kept, of Matryoshka models. `format` is as the input's where neither it nor the name of
    `out` says otherwise. `prefix` stands before the names of results. With `ray`, "local" or a cluster's address, so
    many `actors` compute, each with so many CPUs and GPUs.
    """

    PATHS: ClassVar[tuple[str, ...]] = ("out",)
    COUNTS: ClassVar[tuple[str, ...]] = ("actors", "part_rows", "dimensions")

    run: str
    inputs: Sequence[str | Path]
    out: Path
    text_column: str = "text"
    pair_column: str | None = None
    id_column: str | None = None
    format: str | None = None
    prefix: str = ""
    device: str = "auto"
    dtype: str = "auto"
    dial: float = 1.0
    max_length: int | None = None
    rerank: bool = False
    dimensions: int | None = None
    part_rows: int = 20_000
    overwrite: bool = False
    ray: str | None = None
    actors: int | None = None
    cpus_per_actor: float = 1.0
    gpus_per_actor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.inputs,) if isinstance(self.inputs, str | Path) else tuple(self.inputs)
        if not given:
            raise ConfigError("inputs is empty; give a file, a folder, or several")
        object.__setattr__(self, "inputs", given)
        object.__setattr__(self, "run", str(self.run))
        check_max_length(self.max_length)
        for name in ("cpus_per_actor", "gpus_per_actor"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} = {getattr(self, name)} is below 0, the smallest allowed value")
        if self.ray is None and self.actors is not None:
            raise ConfigError(f"actors = {self.actors} goes with --ray; without it one engine computes here")

    def columns(self) -> "Columns":
        from thresher.bulk.rows import Columns

        found = Columns(self.text_column, self.pair_column, self.id_column)
        for name in found.names():
            if found.names().count(name) > 1:
                raise ConfigError(f"column '{name}' is given twice; text, pair and id must be different columns")
        return found

    def settings(self) -> dict[str, Any]:
        """What decides the output's bytes, beside the inputs and the run."""
        names = ("text_column", "pair_column", "id_column", "prefix", "device", "dtype", "dial", "max_length")
        known = {name: getattr(self, name) for name in (*names, "part_rows")}
        # Work that was begun before there were these goes on.
        return known | {name: value for name in ("rerank", "dimensions") if (value := getattr(self, name))}


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """What there is in `out`: rows, and how many of them have an error, were truncated; tokens read, and the mean share
    of them that a layer passes on (None for embeddings). `texts_per_s` is of the rows of this call, `computed` in
    `seconds`; the others were there before. `first_errors` names some."""

    out: Path
    shards: int
    rows: int
    errors: int
    truncated: int
    tokens: int
    kept: float | None
    computed: int
    seconds: float
    means: str
    device: str
    dtype: str
    first_errors: tuple[str, ...]
    provenance: dict[str, Any]

    @property
    def texts_per_s(self) -> float:
        return self.computed / self.seconds if self.computed else 0.0

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "out": str(self.out), "seconds": round(self.seconds, 3)}
        about = found.pop("provenance")  # whose device is the machine's name
        return {**found, "texts_per_s": round(self.texts_per_s, 1), **about}


def score_files(
    run: str | Path | ScoreRequest,
    *,
    progress: "Callable[[WorkDone], None] | None" = None,
    note: Note | None = None,
    **given: Any,
) -> ScoreResult:
    """Score every row of files, and write them with the results beside their columns.

    `given` are fields of `ScoreRequest`: `score_files("runs/sst2", inputs="reviews.jsonl", out="scored.jsonl")`. A bad
    row gets an error of its own. After an end in the middle, kill -9 too, the same call goes on: it computes no part
    twice and gives the same bytes.
    """
    from thresher.bulk.formats import list_inputs, plan_shards, read_format
    from thresher.jobs.scoring import Scoring

    request = asked(ScoreRequest, run, given, name="run")
    say = note or (lambda text: None)
    files, others = list_inputs(request.inputs)
    if others:
        say(f"left out, as they are of other kinds: {', '.join(others[:5])}{' ...' if len(others) > 5 else ''}")
    single = len(request.inputs) == 1 and Path(expanded(request.inputs[0])).is_file()  # a pattern may match more later
    wanted = None if request.format is None else read_format(request.format)
    shards = plan_shards(files, request.out, wanted=wanted, as_folder=not single)
    with alone(request.out), quiet():
        return Scoring(request, shards, single=single, progress=progress or (lambda done: None), note=say).run()
