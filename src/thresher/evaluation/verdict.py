"""What a benchmark's rows amount to: ratios, and whether pruning pays here."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from thresher.evaluation.contenders import SORTED, STACK
from thresher.evaluation.exported import PREFIX

Table = list[dict[str, Any]]  # rows as Speed.to_dict() gives them
PAYS = 1.02  # below this a difference is the machine's noise
MOST = 1.2  # above this share of what FLOPs promise, something else computed beside the dense row


def is_rival(row: dict[str, Any]) -> bool:
    return not row["engine"].startswith("thresher")


def fastest(rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    return max(rows, key=lambda row: float(row["texts_per_s"]), default=None)


def add_ratios_(rows: Table) -> None:
    """Every row's speed over Hugging Face fp32 padded, the first row, and over the fastest row that is not ours."""
    rival = fastest(filter(is_rival, rows))
    assert rival is not None  # the first row is one
    for row in rows:
        row["ratio_hugging_face"] = row["texts_per_s"] / rows[0]["texts_per_s"]
        row["ratio_best_rival"] = row["texts_per_s"] / rival["texts_per_s"]


@dataclass(frozen=True)
class Against:
    """Pruned, in its fastest arithmetic, against a rival; quality_difference is pruned minus rival."""

    engine: str
    speedup: float
    quality_difference: float | None


@dataclass(frozen=True)
class OneText:
    """Milliseconds of a single text, the median, each side in the arithmetic in which it is fastest."""

    pruned: float
    dense: float
    rival: float
    pruned_dtype: str
    dense_dtype: str
    rival_name: str

    def text(self) -> str:
        rival = f"{self.rival_name} {_ms(self.rival)}"
        lines = [
            f"one text alone: thresher pruned {self.pruned_dtype} {_ms(self.pruned)}, thresher dense "
            f"{self.dense_dtype} {_ms(self.dense)}, the fastest rival, {rival}"
        ]
        slower = [
            f"{compared(other / self.pruned)} {name}"
            for name, other in (("dense", self.dense), ("that rival", self.rival))
            if other / self.pruned < 1 / PAYS
        ]
        if slower:
            lines.append(f"for one text at a time pruning does not pay here: pruned is {' and '.join(slower)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """Pruned against dense in the arithmetic in which pruned is fastest, each in its fastest mode.

    The shares, of what FLOPs promise, are for records. On a CPU, where deployments are int8, pruned is set against the
    best int8 rivals; on a GPU against the best of all, `best_rival`. `stack`: against sentence-transformers, which
    users of rerankers and embedding models have.
    """

    dtype: str
    speedup: float
    flops_ratio: float
    share: float
    paper_flops_ratio: float
    paper_share: float
    pays: bool
    int8_unsorted: Against | None
    int8_sorted: Against | None
    mode: str | None = None
    dense_mode: str | None = None
    best_rival: Against | None = None
    one_text: OneText | None = None
    stack: Against | None = None
    settled: bool = True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        modes = f" ({self.mode} against {self.dense_mode})" if self.mode else ""
        lines = [
            f"pruned is {compared(self.speedup)} dense in {self.dtype}{modes}; {self.flops_ratio:.2f}x fewer FLOPs in "
            f"the engine, {self.paper_flops_ratio:.2f}x in the paper's count"
        ]
        if not self.settled:
            lines.append("these two rows did not settle (~), so their ratio is not to be quoted")
        if self.share > MOST:
            lines.append("that is more than the FLOPs explain: measure again, on an idle machine")
        if not self.pays:
            lines.append("pruning does not pay here; use the dense engine for texts like these")
        if self.stack is not None:
            lines.append(self._over(self.stack, _named(self.stack.engine)))
        if self.best_rival is not None:
            lines.append(self._over(self.best_rival, f"the best rival, {self.best_rival.engine}"))
        for order, found in (("unsorted", self.int8_unsorted), ("sorted", self.int8_sorted)):
            if self.best_rival is not None:  # on a GPU, where nobody serves int8
                break
            if found is None:
                lines.append(f"no int8 rival was measured on {order} texts")
            else:
                engine = found.engine.removesuffix(SORTED)
                lines.append(self._over(found, f"the best int8 rival on {order} texts, {engine}"))
        if self.one_text is not None:
            lines.append(self.one_text.text())
        return "\n".join(lines)

    def _over(self, found: Against, rival: str) -> str:
        difference = found.quality_difference
        quality = "" if difference is None else f", at {100 * difference:+.2f} points of quality"
        return f"pruned {self.dtype} is {compared(found.speedup)} {rival}{quality}"


def _named(engine: str) -> str:
    """The stack's name, as a sentence has it."""
    kind = engine.removesuffix(SORTED)
    return f"{kind} on sorted texts" if engine.endswith(SORTED) else kind


def compared(speedup: float) -> str:
    """1.5 as "1.50x faster than", 0.5 as "2.00x slower than"; what is noise is neither."""
    if 1 / PAYS <= speedup <= PAYS:
        return "as fast as"
    return f"{speedup:.2f}x faster than" if speedup > 1 else f"{1 / speedup:.2f}x slower than"


def _ms(value: float) -> str:
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def judge(rows: Table) -> Verdict | None:
    """None where our engine took no part."""
    pruned = fastest(row for row in rows if row["engine"] == "thresher pruned")
    if pruned is None:
        return None
    dtype = pruned["dtype"]
    dense = fastest(row for row in rows if row["engine"] == "thresher dense" and row["dtype"] == dtype)
    assert dense is not None  # it enters together with the pruned row
    speedup = pruned["texts_per_s"] / dense["texts_per_s"]
    ratio, paper = 1 / pruned["engine_relative_flops"], 1 / pruned["relative_flops"]
    int8 = [row for row in rows if is_rival(row) and row["dtype"] == "int8"]
    return Verdict(
        dtype=dtype,
        speedup=speedup,
        flops_ratio=ratio,
        share=speedup / ratio,
        paper_flops_ratio=paper,
        paper_share=speedup / paper,
        pays=speedup > PAYS,
        int8_unsorted=_against(pruned, [row for row in int8 if not row["engine"].endswith(SORTED)]),
        int8_sorted=_against(pruned, [row for row in int8 if row["engine"].endswith(SORTED)]),
        mode=pruned["mode"],
        dense_mode=dense["mode"],
        best_rival=_against(pruned, list(filter(is_rival, rows))) if pruned["mode"] else None,
        one_text=_one_text(rows),
        stack=_against(pruned, [row for row in rows if row["engine"].startswith(STACK)]),
        settled=all(row.get("settled", True) for row in (pruned, dense)),  # older records do not say
    )


def _one_text(rows: Table) -> OneText:
    """The fastest row of each side for a single text, which need not be the fastest in batches."""

    def quickest(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
        return min(found, key=lambda row: float(row["latency_ms_p50"]))

    def ours(kind: str) -> dict[str, Any]:
        """Of the engine and the exported graphs."""
        return quickest(
            r for r in rows if r["engine"] == f"thresher {kind}" or r["engine"].startswith(f"{PREFIX} {kind}")
        )

    rival = quickest(filter(is_rival, rows))
    pruned, dense = ours("pruned"), ours("dense")
    return OneText(
        **{name: row["latency_ms_p50"] for name, row in (("pruned", pruned), ("dense", dense), ("rival", rival))},
        pruned_dtype=_way(pruned),
        dense_dtype=_way(dense),
        rival_name=f"{rival['engine'].removesuffix(SORTED)} {rival['dtype']}",
    )


def _way(row: dict[str, Any]) -> str:
    """The arithmetic, and the runtime of an exported graph."""
    _, exported, runtime = row["engine"].partition(", ")
    return f"{row['dtype']} exported to {runtime}" if exported else str(row["dtype"])


def _against(pruned: dict[str, Any], rivals: Table) -> Against | None:
    rival = fastest(rivals)
    if rival is None:
        return None
    speedup = pruned["texts_per_s"] / rival["texts_per_s"]
    difference = None if pruned["quality"] is None else pruned["quality"] - rival["quality"]
    return Against(rival["engine"], speedup, difference)
