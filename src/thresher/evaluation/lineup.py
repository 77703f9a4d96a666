"""Who takes part in the benchmark here, and who cannot and why. Nobody is left out in silence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thresher.errors import ConfigError
from thresher.evaluation.alone import alone
from thresher.evaluation.contenders import SORTED, Contender, Spec, build, load_ours
from thresher.evaluation.rivals import (
    NEEDS,
    Row,
    make_onnx,
    make_onnx_int8,
    make_openvino,
    make_openvino_int8,
    missing_package,
    padded,
)
from thresher.hardware import native_bf16_on_cpu

OURS = ("thresher dense", "thresher pruned")
# name on the command line -> the rows' names and arithmetics
ENGINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "hf": (("hugging face", "hugging face" + SORTED), ("fp32", "bf16")),
    "onnxruntime": (("onnxruntime", "onnxruntime" + SORTED), ("fp32", "int8")),
    "openvino": (("openvino", "openvino" + SORTED), ("fp32", "bf16", "int8")),
    "thresher": (OURS, ("fp32", "bf16", "int8", "int8-static")),
}
YARDSTICK = ("hugging face", "fp32")  # always takes part: ratios and agreement are against it


@dataclass(frozen=True)
class Missing:
    """A row that should be in the table and is not."""

    engine: str
    dtype: str
    why: str


@dataclass(frozen=True)
class Material:
    """What contenders are made from: the run, the dense model, a folder for exports, texts to calibrate int8 with."""

    run: Path
    dense: Path
    work: Path
    calibration: Sequence[Row]
    pad_id: int
    threads: int


def parse_engines(names: str | None) -> tuple[str, ...]:
    """'thresher,openvino' -> their names; None means all."""
    if names is None:
        return tuple(ENGINES)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in ENGINES:
            raise ConfigError(f"engine '{name}' is not one of: {', '.join(ENGINES)}; join several with commas")
    return tuple(name for name in ENGINES if name in wanted)


def rows_of(engines: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """(names, arithmetic) of all rows that should be in the table, the yardstick first."""
    found: list[tuple[tuple[str, ...], str]] = []
    for kind, (names, dtypes) in ENGINES.items():
        if kind in engines:
            found += [(names, dtype) for dtype in dtypes]
        elif YARDSTICK[0] in names:
            found.append((YARDSTICK[:1], YARDSTICK[1]))
    return found


def line_up(
    engines: Sequence[str], material: Material, on_step: Callable[[], None] = lambda: None
) -> tuple[list[Contender], list[Missing]]:
    """Export, load and try every contender. `on_step` is called once for each of `rows_of`."""
    contenders: list[Contender] = []
    missing: list[Missing] = []
    for names, dtype in rows_of(engines):
        why = _cannot(names[0], dtype)
        if why is None:
            try:
                contenders += _enter(names, dtype, material)
            except Exception as error:  # converters and runtimes of others raise every kind
                ours_cannot = names == OURS and isinstance(error, ConfigError)  # int8 on a processor without VNNI
                if (names[0], dtype) not in NEEDS and not ours_cannot:
                    raise
                why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if why is not None:
            missing += [Missing(name, dtype, why) for name in names]
        on_step()
    return contenders, missing


def _cannot(engine: str, dtype: str) -> str | None:
    if dtype == "bf16" and not native_bf16_on_cpu():
        return "the processor has no native bfloat16"
    package = missing_package(engine, dtype) if (engine, dtype) in NEEDS else None
    return f"{package} is not installed; pip install 'thresher[bench]'" if package else None


def _enter(names: Sequence[str], dtype: str, material: Material) -> list[Contender]:
    """Loaded contenders of these names; a sorted row shares the model of the one before it."""
    found: list[Contender] = []
    for name in names:
        path = _path(name, dtype, material)
        steps = _steps(name, path, material) if dtype == "int8-static" else None
        spec = Spec(name, dtype, path, pad_id=material.pad_id, threads=material.threads, steps=steps)
        if name.endswith(SORTED):
            found.append(replace(found[-1], spec=spec))
        else:
            found.append(build(spec))
            found[-1].run(material.calibration[:1])
    return found


def _path(engine: str, dtype: str, material: Material) -> Path:
    """What a contender loads; a rival's file is made first, in a process of its own."""
    kind = engine.removesuffix(SORTED)
    if kind == "thresher pruned":
        return material.run
    if (kind, dtype) not in NEEDS:
        return material.dense
    suffix = "onnx" if kind == "onnxruntime" else "xml"
    fp32, int8 = (material.work / f"{name}.{suffix}" for name in ("fp32", "int8"))
    if not fp32.exists():
        # Two rows of different lengths, so that neither the batch nor the padding is taken for a constant.
        shortest, *_, longest = sorted([*material.calibration, material.calibration[0]], key=lambda r: len(r.input_ids))
        alone(
            make_onnx if suffix == "onnx" else make_openvino,
            material.dense,
            fp32,
            padded([shortest, longest], material.pad_id),
        )
    if dtype == "int8" and not int8.exists():
        if suffix == "onnx":
            alone(make_onnx_int8, fp32, int8)
        else:
            alone(make_openvino_int8, fp32, int8, [padded([row], material.pad_id) for row in material.calibration])
    return int8 if dtype == "int8" else fp32


def _steps(name: str, path: Path, material: Material) -> Path:
    """Our static int8's file of steps: a quantized run's own, else made from the texts that OpenVINO's int8 gets."""
    from thresher.engine.backends.linear import check_int8
    from thresher.engine.quantize import find_steps
    from thresher.engine.steps import STEPS, write_steps

    if name == "thresher pruned" and (path / STEPS).is_file():
        return path / STEPS
    check_int8()
    texts = [(row.input_ids, row.token_type_ids) for row in material.calibration]
    folder = material.work / name
    folder.mkdir(exist_ok=True)
    write_steps(folder, find_steps(load_ours(name, path)[0], texts))
    return folder / STEPS
