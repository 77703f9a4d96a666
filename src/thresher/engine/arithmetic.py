"""Which arithmetic is fast on which processor: a table of measurements, chosen from by instruction sets.

Nothing is timed when an engine is loaded. A busy machine would choose now this arithmetic and now that one, and another
arithmetic rounds other numbers: workers of one job would drop other tokens. `thresher doctor` measures, and advises.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from thresher.engine.backends.linear import check_int8
from thresher.errors import ConfigError
from thresher.hardware import features

STATIC = "int8-static"
FP8 = "fp8"


@dataclass(frozen=True)
class Row:
    """Processors with these instruction sets: what they compute in, and in what if a run was quantized."""

    needs: tuple[str, ...]
    dtype: str
    quantized: str
    why: str


# The first row that fits decides. Ratios are of a dense base-size model on QNLI, on two cores of an AMD EPYC
# (benchmarks/cpu/results.jsonl). Without bf16 in hardware it is emulated, so it is taken only where the processor has
# it. Rows without numbers follow from these, and were not measured.
TABLE = (
    Row(
        ("avx512_bf16", "avx512_vnni"),
        "bf16",
        STATIC,
        "measured with AVX512_BF16 and AVX512_VNNI: bf16 is 1.8x as fast as fp32, int8-static 3.2x",
    ),
    Row(("amx_bf16", "amx_int8"), "bf16", STATIC, "AMX computes bf16 and int8 in hardware, which was not measured"),
    Row(("avx512_bf16",), "bf16", "bf16", "measured with AVX512_BF16: bf16 is 1.8x as fast as fp32"),
    Row(("avx512_vnni",), "fp32", STATIC, "no bf16 in hardware; int8 by AVX512_VNNI, which was not measured alone"),
    Row(("avx_vnni",), "fp32", STATIC, "no bf16 in hardware; int8 by AVX_VNNI, which was not measured"),
    Row((), "fp32", "fp32", "neither bf16 nor int8 in hardware that was measured"),
)


def row_for(found: Mapping[str, bool]) -> Row:
    """The table's row for a processor's instruction sets."""
    return next(row for row in TABLE if all(found.get(name) for name in row.needs))


def cpu_dtype(*, quantized: bool) -> tuple[str, str]:
    """The arithmetic for this processor, and why. int8 only for a quantized run, whose loss was measured."""
    row = row_for(features())
    if not quantized:
        return row.dtype, f"by the processor's instruction sets: {row.why}"
    if row.quantized == STATIC and int8_works():
        return STATIC, f"the run is quantized, and by the processor's instruction sets int8 is the fastest: {row.why}"
    return row.dtype, f"the run is quantized, but int8 is not known to be faster here: {row.why}"


def int8_works() -> bool:
    """Whether the library's int8 products are right on this processor."""
    try:
        check_int8()
    except ConfigError:
        return False
    return True


def advice(times: Mapping[str, float], chosen: str) -> str | None:
    """What measured milliseconds say against a choice, if they do by more than a quarter: how to pin the other."""
    ranked = {name: ms for name, ms in times.items() if name in ("fp32", "bf16")}
    if chosen not in ranked:
        return None
    best = min(ranked, key=lambda name: ranked[name])
    if ranked[chosen] <= 1.25 * ranked[best]:
        return None
    return (
        f"{best} took {ranked[best]:.2f} ms here and {chosen} {ranked[chosen]:.2f} ms; if that repeats on an idle "
        f"machine, load engines with dtype='{best}'"
    )
