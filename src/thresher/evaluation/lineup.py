"""Who takes part in the benchmark here, and who cannot and why. Nobody is left out in silence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.core.heads import OF_TOKENS
from thresher.engine.arithmetic import FP8, STATIC
from thresher.errors import CheckpointError, ConfigError, ModelError
from thresher.evaluation.alone import alone
from thresher.evaluation.contenders import (
    COMPILED,
    EAGER,
    ONNX,
    SORTED,
    STACK,
    UNPADDED,
    Contender,
    Spec,
    build,
    load_ours,
)
from thresher.evaluation.exported import NAMES, PACKAGES, PREFIX, RUNTIMES, make_exported, parts_of
from thresher.evaluation.pace import sample_of
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
from thresher.workplace import folder_here

if TYPE_CHECKING:
    from thresher.models.checkpoint import Checkpoint

HF = "hugging face"
OURS = ("thresher dense", "thresher pruned")
ONE_BY_ONE = tuple(name + ONNX for name in OURS)  # the engine with backend="onnx"
YARDSTICK = (HF, "fp32")  # always takes part: ratios and agreement are against it
HALVES = ("fp16", "bf16")  # what a GPU's rows other than the yardstick may compute in
MODES = ("graph", "sync")
NO_TIME = "no time was left to convert it; give more --seconds, or fewer --engines"
# What a run shares with the model it was made from.
SHAPE = (  # each under all the names that it has in configurations
    *("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"),
    *("intermediate_size", "hidden_dim", "num_attention_heads", "embedding_size", "type_vocab_size"),
)


@dataclass(frozen=True)
class Group:
    """Rows of one arithmetic that enter together, and of our GPU engine's mode where there is one."""

    names: tuple[str, ...]
    dtype: str
    mode: str | None = None


@dataclass(frozen=True)
class Missing:
    """A row that should be in the table and is not."""

    engine: str
    dtype: str
    why: str
    mode: str | None = None


@dataclass(frozen=True)
class Material:
    """What contenders are made from: the run, the dense model, a folder for exports, texts to calibrate int8 with.

    They are tried on the first of the timed `texts`. `half` is the arithmetic of the rows on a GPU; `means`: what
    outputs are.
    """

    run: Path
    dense: Path
    work: Path
    calibration: Sequence[Row]
    pad_id: int
    threads: int
    texts: Sequence[Row]
    batch_size: int
    device: str = "cpu"
    half: str = "fp16"
    means: str = "classes"


@dataclass(frozen=True)
class Dense:
    """The folder whose weights all rows but the pruned ones have, and what it is, without the machine's folders."""

    folder: Path
    name: str


def dense_of(run: Path, checkpoint: "Checkpoint") -> Dense:
    """The model that pruning started from, where it is still to be had, else the run itself."""
    if (run / "dense").is_dir():
        if not _fits(run / "dense", checkpoint.model):
            rule = "remove that folder, or put back the one that was written with the run"
            raise CheckpointError(f"{run}/dense/ is another model than the run's own; {rule}")
        return Dense(run / "dense", "the dense model fine-tuned with the run (dense/)")
    named = checkpoint.manifest.get("base_model")
    if isinstance(named, str):
        base = folder_here(named)
        if base is not None and base != run.resolve() and _fits(base, checkpoint.model):
            return Dense(base, f"the base model {base.name}")
    return Dense(run, "this run's own weights, unpruned")


def _fits(base: Path, model: Any) -> bool:
    """Whether the folder holds a model of this shape with a head of this kind: it may be on another machine, or have
    been written anew."""
    from thresher.models.checkpoint import has_head
    from thresher.models.folder import read_config
    from thresher.models.heads import head_of
    from thresher.models.sentence_folder import read_head

    config, head = model.config, head_of(model)
    try:
        found = read_config(base)
        if head.means != "embedding" and not has_head(base, config.num_labels, means=head.means):
            return False
        if head.means == "embedding" and read_head(base, found) != head:
            return False
    except ModelError:  # not the folder of a model
        return False
    return all(getattr(found, name, None) == getattr(config, name, None) for name in SHAPE)


def groups(device: str = "cpu", half: str = "fp16", means: str = "classes") -> dict[str, list[Group]]:
    """Name on the command line -> its rows. Rerankers and embedding models have a stack of their own; heads that read
    every token race transformers alone on the CPU, on the same windows."""
    own = {"st": [Group((STACK, STACK + SORTED), "fp32" if device == "cpu" else half)]}
    stack = own if means in ("score", "embedding") else {}
    if device == "cpu":
        exported = {
            "onnxruntime": [Group(("onnxruntime", "onnxruntime" + SORTED), dtype) for dtype in ("fp32", "int8")],
            "openvino": [Group(("openvino", "openvino" + SORTED), dtype) for dtype in ("fp32", "bf16", "int8")],
        }
        return {
            "hf": [Group((HF, HF + SORTED), dtype) for dtype in ("fp32", "bf16")],
            **stack,
            **({} if means in OF_TOKENS else exported),
            "thresher": [Group(OURS, dtype) for dtype in ("fp32", "bf16", "int8", "int8-static")],
            "export": [
                Group(names, dtype)
                for names in (*(NAMES[runtime] for runtime in RUNTIMES), ONE_BY_ONE)
                for dtype in ("fp32", "int8-static")
            ],
        }
    return {
        "hf": [Group((HF,), "fp32"), Group((EAGER,), half), Group((HF, HF + SORTED), half)],
        **stack,
        "compile": [Group((COMPILED,), half)],
        "unpadded": [Group((UNPADDED,), half)],
        "thresher": [*(Group(OURS, half, mode) for mode in MODES), Group(OURS, FP8, MODES[0])],
    }


def parse_engines(names: str | None, device: str = "cpu", means: str = "classes") -> tuple[str, ...]:
    """'thresher,openvino' -> their names; None means all."""
    known = groups(device, means=means)
    if names is None:
        return tuple(known)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"engine '{name}' is not one of: {', '.join(known)}; join several with commas (device: {device})"
            )
    return tuple(name for name in known if name in wanted)


def rows_of(engines: Sequence[str], device: str = "cpu", half: str = "fp16", means: str = "classes") -> list[Group]:
    """All rows that should be in the table, the yardstick first."""
    found = [] if "hf" in engines else [Group(YARDSTICK[:1], YARDSTICK[1])]
    for name, rows in groups(device, half, means).items():
        found += rows if name in engines else []
    return found


def line_up(
    engines: Sequence[str],
    material: Material,
    on_step: Callable[[], None] = lambda: None,
    late: Callable[[], bool] = lambda: False,
) -> tuple[list[Contender], list[Missing]]:
    """Export, load and try every contender. `on_step` is called once for each of `rows_of`.

    What has to be converted comes last, and is missing where it has become `late`. The table keeps its order.
    """
    contenders: list[Contender] = []
    missing: list[Missing] = []
    wanted = rows_of(engines, material.device, material.half, material.means)
    for group in sorted(wanted, key=_is_converted):
        why = _cannot(group, material.device)
        if why is None and _is_converted(group) and late():
            why = NO_TIME
        if why is None:
            try:
                contenders += _enter(group, material)
            except Exception as error:  # converters, compilers and runtimes of others raise every kind
                name = group.names[0]
                # int8 on a CPU without VNNI; a layer or rule that no graph has yet
                ours_cannot = (group.names == OURS and isinstance(error, ConfigError)) or (
                    (name.startswith(PREFIX) or name.endswith(ONNX)) and isinstance(error, ConfigError | ModelError)
                )
                if (name, group.dtype) not in NEEDS and name not in (COMPILED, UNPADDED, STACK) and not ours_cannot:
                    raise
                why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if why is not None:
            missing += [Missing(name, group.dtype, why, group.mode) for name in group.names]
        on_step()
    places = {(name, group.dtype, group.mode): i for i, group in enumerate(wanted) for name in group.names}
    contenders.sort(key=lambda each: places[each.spec.engine, each.spec.dtype, each.spec.mode])
    missing.sort(key=lambda each: places[each.engine, each.dtype, each.mode])
    return contenders, missing


def _is_converted(group: Group) -> bool:
    """Whether files are made for these rows, which takes a base model half a minute."""
    name = group.names[0]
    return (name, group.dtype) in NEEDS or name.startswith(PREFIX) or name.endswith(ONNX)


def _cannot(group: Group, device: str) -> str | None:
    if group.names[0] == STACK:
        there = find_spec("sentence_transformers") is not None
        return None if there else "sentence-transformers is not installed; pip install 'thresher[st]'"
    if device != "cpu":
        from thresher.engine.choose import gpu_problem

        return (gpu_problem(group.dtype) or None) if group.names == OURS else None
    if group.dtype == "bf16" and not native_bf16_on_cpu():
        return "the processor has no native bfloat16"
    key = (group.names[0], group.dtype)
    if key[0].startswith(PREFIX) or key[0].endswith(ONNX):
        runtime = "onnxruntime" if key[0].endswith(ONNX) else parts_of(key[0])[1]
        absent = [name for name in PACKAGES[runtime] if find_spec(name) is None]
        return f"{absent[0]} is not installed; pip install 'thresher[bench]'" if absent else None
    package = missing_package(*key) if key in NEEDS else None
    return f"{package} is not installed; pip install 'thresher[bench]'" if package else None


def _enter(group: Group, material: Material) -> list[Contender]:
    """Loaded contenders of a group; a sorted row shares the model of the one before it."""
    found: list[Contender] = []
    for name in group.names:
        path = _path(name, group.dtype, material)
        spec = Spec(
            name,
            group.dtype,
            path,
            pad_id=material.pad_id,
            threads=material.threads,
            scales=_scales(_of_ours(name), path, material)
            if group.dtype in (STATIC, FP8) and _of_ours(name) in OURS
            else None,
            device=material.device,
            mode=group.mode,
            # Every shape is compiled: one width for whole batches, the rest and single texts, that of the longest.
            width=max(len(row.input_ids) for row in material.texts) if name == COMPILED else 0,
            means=material.means,
        )
        if name.endswith(SORTED):
            found.append(replace(found[-1], spec=spec))
        else:
            found.append(build(spec))
            for batch in (sample_of(material.texts, material.batch_size, material.device), material.texts[:1]):
                found[-1].run(batch)
    return found


def _of_ours(name: str) -> str:
    """The row whose model and scales this one has, too."""
    return name.removesuffix(ONNX)


def _path(engine: str, dtype: str, material: Material) -> Path:
    """What a contender loads; a rival's file is made first, in a process of its own."""
    kind = _of_ours(engine.removesuffix(SORTED))
    if kind.startswith(PREFIX):
        return _exported(kind, dtype, material)
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


def _exported(name: str, dtype: str, material: Material) -> Path:
    """The folder of our graphs, made in a process of its own as a rival's file is."""
    kind, runtime = parts_of(name)
    source, folder = material.run if kind == "pruned" else material.dense, material.work / f"{name}, {dtype}"
    scales = _scales(f"thresher {kind}", source, material) if dtype == "int8-static" else None
    alone(make_exported, source, folder, kind, runtime, scales)
    return folder


def _scales(name: str, path: Path, material: Material) -> Path:
    """Our file of scales: a quantized run's own, else made from the texts that OpenVINO's int8 gets."""
    from thresher.engine.backends.linear import check_int8
    from thresher.engine.find_scales import find_scales
    from thresher.engine.scales import SCALES, scales_file, write_scales

    if name == "thresher pruned" and (own := scales_file(path)) is not None:
        return own
    if material.device == "cpu":
        check_int8()
    texts = [(row.input_ids, row.token_type_ids) for row in material.calibration]
    folder = material.work / name
    if (folder / SCALES).exists():
        return folder / SCALES
    folder.mkdir(exist_ok=True)
    write_scales(folder, find_scales(load_ours(name, path)[0], texts))
    return folder / SCALES
