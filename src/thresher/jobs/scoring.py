"""The work of the scoring job: what is there already, what is missing, and the output in its place when all is done."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import DataError, RunError
from thresher.jobs.request import Note
from thresher.jobs.score import ScoreRequest, ScoreResult
from thresher.workplace import has_state, work_of

if TYPE_CHECKING:
    from thresher.bulk.formats import Shard
    from thresher.bulk.scorer import Crew, Setting
    from thresher.bulk.store import ShardStore
    from thresher.bulk.work import WorkDone

FORMAT_VERSION = 1


class Scoring:
    """One call's work: what is there already, what is missing, and the totals."""

    def __init__(
        self,
        request: ScoreRequest,
        shards: "list[Shard]",
        *,
        single: bool,
        progress: "Callable[[WorkDone], None]",
        note: Note,
    ) -> None:
        self.request, self.shards, self.single, self.progress, self.note = request, shards, single, progress, note
        self.out, self.work = request.out, work_of(request.out)
        self.record = self.out.with_name(self.out.name + ".manifest.json")
        self.made = self.work / "out" / shards[0].name if single else self.work / "out"
        self.columns = request.columns()
        self.changes = [_last_change(shard.source) for shard in shards]

    def run(self) -> ScoreResult:
        from thresher.bulk.store import open_shards, remove_work
        from thresher.records import read_json

        self._check_places()
        found = [self._looked_at(shard) for shard in self.shards]
        identities = self._identities()
        stores = list(open_shards(self.work))
        if stores and (other := self._other([store.manifest for store in stores], identities)):
            if not self.request.overwrite:
                raise self._refusal(self.work, other)
            remove_work(self.work)
            stores = []
        if self.out.exists() and not self._is_moved(stores):
            self._check_ours()
            if stores and not self.request.overwrite:
                raise RunError(f"{self.out} exists, and {self.work} would replace it; allow that with --overwrite")
            if not stores and not self.request.overwrite:
                saved = read_json(self.record, error=RunError)["shards"]
                if other := self._other(saved, identities):
                    raise self._refusal(self.out, other)
                self.note(f"{self.out} is complete; there was nothing to do")
                shutil.rmtree(self.work, ignore_errors=True)
                return self._result(saved, computed=0, seconds=0.0)
        computed, seconds = 0, 0.0
        if not stores or not all(store.finished for store in stores):
            stores, computed, seconds = self._computed(stores, found, identities)
            self._check_unchanged(identities)
        return self._finish(stores, computed, seconds)

    def _is_moved(self, stores: "list[ShardStore]") -> bool:
        """Whether all is done, and the output is in its place; what stands there before that is in the way."""
        return bool(stores) and all(store.finished for store in stores) and not self.made.exists()

    def _looked_at(self, shard: "Shard") -> list[str]:
        from thresher.bulk.plan import columns_in
        from thresher.bulk.streams import arrow

        if shard.target.packing == "zst" or shard.target.kind == "parquet":
            arrow(self.out / shard.name)
        return columns_in(shard, self.columns)

    def _identities(self) -> list[dict[str, Any]]:
        """What each shard's output is made from; work goes on only where all of it is as it was."""
        from thresher.bulk.identity import file_fingerprint, run_fingerprint
        from thresher.bulk.scorer import absolute
        from thresher.models.manifest import is_run, read_manifest
        from thresher.models.pairs import check_pairs
        from thresher.records import versions

        if is_run(self.request.run):
            manifest = read_manifest(Path(absolute(self.request.run)))
            check_pairs(manifest, given_pairs=self.columns.pair is not None, name=self.request.run)
        common = {
            "settings": self.request.settings(),
            "run": run_fingerprint(self.request.run),
            "versions": versions(),
        }
        return [
            {"input": file_fingerprint(shard.source), "output": f"{shard.name} ({shard.target})", **common}
            for shard in self.shards
        ]

    def _check_unchanged(self, identities: list[dict[str, Any]]) -> None:
        """What grew while it was read gave rows that its manifest knows nothing of."""
        from thresher.bulk.identity import file_fingerprint

        for shard, last, identity in zip(self.shards, self.changes, identities, strict=True):
            if last != _last_change(shard.source) and file_fingerprint(shard.source) != identity["input"]:
                raise RunError(f"{shard.source} was changed while it was read; leave it alone, and give --overwrite")

    def _other(self, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str | None:
        """What differs from work that was begun or done; None if it is the same."""
        from thresher.bulk.identity import difference

        names = [[str(one["input"]["name"]) for one in some] for some in (before, now)]
        what = difference({"inputs": names[0]}, {"inputs": names[1]})
        for one, other in zip(before, now, strict=False):
            what = what or difference({name: one.get(name) for name in other}, other)
        return what

    def _refusal(self, place: Path, what: str) -> RunError:
        return RunError(f"{place} is of other work: {what}; give the same again, or start anew with --overwrite")

    def _check_places(self) -> None:
        """Neither inputs nor another command's unfinished work are ever replaced."""
        out = self.out.resolve()
        for shard in self.shards:
            source = shard.source.resolve()
            if out == source or out in source.parents:
                raise RunError(f"--out {self.out} would replace the input {shard.source}; choose another --out")
        if has_state(self.work) and not (self.work / "shards").exists():
            raise RunError(f"{self.work} holds another command's unfinished work; choose another --out")

    def _check_ours(self) -> None:
        """Nothing but what an earlier call wrote is ever replaced."""
        from thresher.records import read_json

        if not self.record.is_file():
            kind = " as a folder; for one input --out names a file" if self.single and self.out.is_dir() else ""
            raise RunError(f"{self.out} exists{kind} and was not written by thresher score; choose another --out")
        if self.request.overwrite and self.out.is_dir():
            written = {
                str(one["output"]).rpartition(" (")[0] for one in read_json(self.record, error=RunError)["shards"]
            }
            others = sorted(path.name for path in self.out.iterdir() if path.name not in written)
            if others:
                why = f"{self.out} holds {others[0]}, which thresher score did not write"
                raise RunError(f"{why}; move it away, or choose another --out")

    def _computed(
        self, stores: "list[ShardStore]", found: list[list[str]], identities: list[dict[str, Any]]
    ) -> "tuple[list[ShardStore], int, float]":
        from thresher.bulk.plan import plan_layout, saved_layout
        from thresher.bulk.scorer import Setting, absolute
        from thresher.bulk.store import begin_shards
        from thresher.bulk.work import Work

        request = self.request
        # The arithmetic of work that was begun, which another moment might choose otherwise.
        chosen = stores[0].manifest["arithmetic"] if stores else {"device": request.device, "dtype": request.dtype}
        options: Any = {"dial": request.dial, "max_length": request.max_length, "dimensions": request.dimensions}
        setting = Setting(absolute(request.run), **chosen, **options, means="score" if request.rerank else None)
        with self._crew(setting, identities[0]["run"]) as crew:
            about: Any = {"means": crew.about.means, "width": crew.about.width, "prefix": request.prefix}
            self._check_head(crew.about.means)
            if stores:
                layouts = [
                    saved_layout(shard, store.manifest["columns"], **about)
                    for shard, store in zip(self.shards, stores, strict=True)
                ]
            else:
                layouts = [
                    plan_layout(shard, self.columns, names, **about)
                    for shard, names in zip(self.shards, found, strict=True)
                ]
                arithmetic = {"device": crew.about.device, "dtype": crew.about.dtype}
                head = {"means": crew.about.means, "arithmetic": arithmetic, "format": FORMAT_VERSION}
                manifests = [
                    {**identity, **head, "columns": dict(layout.inputs), "finished": None}
                    for identity, layout in zip(identities, layouts, strict=True)
                ]
                self.work.mkdir(parents=True, exist_ok=True)
                stores = begin_shards(self.work, manifests)
            self.note(f"{crew.about.device}, {crew.about.dtype}: {crew.about.why}")
            work = Work(self.shards, stores, layouts, found, self.columns, part_rows=request.part_rows)
            began = time.perf_counter()
            rows = work.run(crew, self.work / "out", self.progress)
            return stores, rows, time.perf_counter() - began

    def _crew(self, setting: "Setting", fingerprint: str) -> Any:
        from contextlib import nullcontext

        from thresher.bulk.scorer import Scorer

        if self.request.ray is None:
            crew: Crew = Scorer(setting)
            return nullcontext(crew)
        from thresher.scale.actors import Pool

        return Pool(
            setting,
            fingerprint,
            address=self.request.ray,
            actors=self.request.actors,
            cpus=self.request.cpus_per_actor,
            gpus=self.request.gpus_per_actor,
            note=self.note,
        )

    def _check_head(self, means: str) -> None:
        if means == "score" and self.columns.pair is None:
            raise DataError(f"{self.request.run} is a reranker; name the document's column with --pair-column")
        if means == "span" and self.columns.pair is None:
            raise DataError(
                f"{self.request.run} answers questions; name the columns of question and context with --text-column "
                "and --pair-column"
            )
        if means in ("embedding", "tags") and self.columns.pair is not None:
            kind = "is an embedding model" if means == "embedding" else "tags tokens"
            raise DataError(f"{self.request.run} {kind}, which reads single texts; leave out --pair-column")

    def _finish(self, stores: "list[ShardStore]", computed: int, seconds: float) -> ScoreResult:
        """The output appears, then what it is made from beside it; an end between any two steps is no harm."""
        from thresher.bulk.store import remove_work, write_whole
        from thresher.bulk.streams import on_disk

        manifests = [store.manifest for store in stores]
        if not self._is_moved(stores):
            if self.out.exists() and not self.request.overwrite:
                raise RunError(f"{self.out} appeared while it was computed; move it away, and the same command goes on")
            if self.out.is_dir() and not self.out.is_symlink():
                shutil.rmtree(self.out)
            elif self.made.is_dir():  # which takes no file's place by itself
                self.out.unlink(missing_ok=True)
            os.replace(self.made, self.out)
            on_disk(self.out.absolute().parent)
        result = self._result(manifests, computed=computed, seconds=seconds)
        about = {**result.to_dict(), "out": self.out.name, "shards": manifests}
        write_whole(self.record, json.dumps(about, indent=2).encode() + b"\n")
        remove_work(self.work)
        return result

    def _result(self, manifests: list[dict[str, Any]], *, computed: int, seconds: float) -> ScoreResult:
        from thresher.records import provenance

        ends = [manifest["finished"] for manifest in manifests]
        total = {name: sum(end[name] for end in ends) for name in ("rows", "errors", "truncated", "tokens")}
        good = total["rows"] - total["errors"]
        first = [(m["input"]["name"], end["first_error"]) for m, end in zip(manifests, ends, strict=True)]
        arithmetic = manifests[0]["arithmetic"]
        return ScoreResult(
            out=self.out,
            shards=len(manifests),
            **total,
            kept=round(sum(end["shares"] for end in ends) / good, 4) if good else None,
            computed=computed,
            seconds=seconds,
            means=manifests[0]["means"],
            **arithmetic,
            first_errors=tuple(f"{name}, row {one['row']}: {one['error']}" for name, one in first if one)[:3],
            provenance=provenance(device=arithmetic["device"], seed=None),
        )


def _last_change(path: Path) -> tuple[int, int] | None:
    """When, and what size it has since; None where it is gone."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
