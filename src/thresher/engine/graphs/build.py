"""The whole graph: inputs, embeddings, layers, head, outputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thresher.core.plan import PruningPlan
from thresher.engine.backends.cpu import check_scales
from thresher.engine.graphs.graph import IR_VERSION, OPSET, Graph
from thresher.engine.graphs.layers import LayerNodes
from thresher.engine.graphs.places import Places, needs_positions
from thresher.engine.graphs.rows import Batch, Live, OneText, Rows, Stepped, back_in_order, filled, true_places
from thresher.engine.supported import check_supported
from thresher.engine.weights import LayerScales, Weights
from thresher.errors import ModelError
from thresher.records import thresher_version

NEVER_EMPTY = {"first", "first_segment"}  # groups that every text has a token of
LOGITS, STATES, EMBEDDING, KEPT, DIAL = "logits", "last_hidden_state", "sentence_embedding", "kept", "dial"
PASSED, LIMITS = "passed", "limits"
SPAN = ("start_logits", "end_logits")


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the graph is like. types: it has the input token_type_ids; one: for single texts; kept: it also gives the
    counts of kept tokens; passed: and how many layers passed each token on; dial: thresholds can be scaled when it
    runs; limits: they are an input, one number for each layer, and below 0 a layer keeps all; half: matrices are stored
    in fp16; step: rows of a single text come in multiples of it, with idle ones, so that shapes repeat."""

    types: bool = False
    one: bool = False
    kept: bool = False
    passed: bool = False
    dial: bool = False
    limits: bool = False
    half: bool = False
    step: int = 1


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs as the layers want them: rows, the mask (batch, length) as booleans, the counts, and which
    texts cannot be computed."""

    rows: Rows
    mask: str
    counts: str
    wrong: str  # (batch,) booleans
    total: str  # (1,) int64


def build_model(
    weights: Weights, plan: PruningPlan, *, form: Form, means: str = "classes", scales: Sequence[LayerScales] = ()
) -> Any:
    """An ONNX model that drops what the plan says. `means`: what outputs are, one of `core.heads.MEANINGS`; `scales`:
    those of a quantized run, one per layer, whose products are then in int8."""
    from onnx import TensorProto, helper, numpy_helper

    check_supported("export", weights.specs)
    check_plan(plan)
    if form.step > 1 and not (form.one and steps_fit(plan, form)):
        raise ModelError(f"step = {form.step} is for single texts of which first tokens alone are read; leave it at 1")
    if scales:
        check_scales(scales, weights)
    graph = Graph(half=form.half)
    size: list[int | str] = [1 if form.one else "batch", "length"]
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if form.types else [])]
    taken = [helper.make_tensor_value_info(name, TensorProto.INT64, size) for name in names]
    dial = DIAL if form.dial else None
    inputs = _inputs(graph, weights, plan, form)
    places = Places(graph, weights, counts=inputs.counts, score_queries=plan.score_queries)
    limits = _limits(graph, plan) if form.limits else None
    layers = LayerNodes(graph, weights, plan, places=places, dial=dial, limits=limits, scales=scales)
    rows, kept = inputs.rows, []
    for index in range(layers.alone):
        if index == plan.whole_from:
            rows = layers.rejoined(rows, inputs.rows, inputs.total)
        rows = layers.layer(index, rows)
        kept.append(rows.live.counts)
    outputs = []

    def give(value: str, name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> None:
        graph.rename_(value, name)
        outputs.append(helper.make_tensor_value_info(name, kind, shape))

    for name, (value, shape) in _answers(graph, weights, plan, means, inputs, rows, layers).items():
        give(value, name, [size[0], *shape])
    if form.kept:
        give(_kept(graph, kept, inputs.counts, layers=plan.layers), KEPT, [size[0], plan.layers], TensorProto.INT64)
    if form.passed:
        give(_passed(graph, inputs, rows, layers, plan), PASSED, [size[0], "length"], TensorProto.INT64)
    if form.limits:
        taken.append(helper.make_tensor_value_info(LIMITS, TensorProto.FLOAT, [plan.layers]))
    if dial is not None:
        taken.append(helper.make_tensor_value_info(DIAL, TensorProto.FLOAT, []))
        graph.initializers.append(numpy_helper.from_array(_one(), DIAL))
    made = helper.make_graph(graph.nodes, "thresher", taken, outputs, initializer=graph.initializers)
    return helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="thresher",
        producer_version=thresher_version(),
    )


def _limits(graph: Graph, plan: PruningPlan) -> list[str]:
    """Every layer's threshold, without dimensions."""
    parts = graph.node("Split", LIMITS, axis=0, num_outputs=plan.layers, outputs=plan.layers)
    return [graph.node("Squeeze", part, graph.whole(0)) for part in parts]


def check_plan(plan: PruningPlan) -> None:
    """Refuse what the graph cannot compute."""
    if any(value > 0 for value in plan.thresholds) and not NEVER_EMPTY & set(plan.protect):
        raise ModelError(
            f"protect = {list(plan.protect)} lets texts lose all their tokens, which the graph cannot compute; retrain "
            "with protect = first"
        )


def steps_fit(plan: PruningPlan, form: Form) -> bool:
    """Whether idle rows do no harm: where every token's last state is asked for, they would be among them."""
    return not (plan.restores or form.passed)


def _inputs(graph: Graph, weights: Weights, plan: PruningPlan, form: Form) -> Inputs:
    """Tokens are what the mask says, in their order: padding may stand anywhere, and is gone after this."""
    ids, flat = "input_ids", graph.whole(-1)
    like = graph.node("Shape", ids)
    name = "attention_mask_must_have_the_shape_of_input_ids"
    mask = graph.node("Cast", graph.node("Reshape", "attention_mask", like, name=name), to=9)
    counts = graph.node("ReduceSum", graph.node("Cast", mask, to=7), graph.whole(1), keepdims=0)
    empty = graph.node("Equal", counts, graph.one_whole(0))
    # A text without tokens is refused, or answered with NaN; until then its first column passes for a token, because
    # runtimes may end the process over arrays without rows.
    columns = _all_rows(graph, graph.node("Slice", like, graph.whole(1), graph.whole(2)))
    first = graph.node("Equal", columns, graph.one_whole(0))
    mask = graph.node("Or", mask, graph.node("And", graph.node("Unsqueeze", empty, graph.whole(1)), first))
    numbers = graph.node("Cast", mask, to=7)
    counts = graph.node("ReduceSum", numbers, graph.whole(1), keepdims=0)
    long = graph.node("Greater", counts, graph.one_whole(weights.positions))
    rule = f"every_text_needs_1_to_{weights.positions}_tokens_beside_padding"
    wrong = graph.node("Or", empty, long)
    chosen = _refuse(graph, true_places(graph, mask), wrong, name=rule)
    if form.step > 1:  # the first token's place is not the first one where padding stands before it
        rows_of_text = filled(graph, _all_rows(graph, graph.node("Shape", chosen)), form.step)
        chosen = graph.node("Gather", chosen, rows_of_text, axis=0)
    total = graph.node("Shape", chosen)

    def packed(values: str) -> str:
        """(batch, length) -> (total,)."""
        return str(graph.node("Gather", graph.node("Reshape", values, flat), chosen, axis=0))

    rank = graph.node("Sub", graph.node("CumSum", numbers, graph.one_whole(1)), graph.one_whole(1))
    # Of a text that is too long nothing is read outside the tables, whatever the runtime does about it.
    rank = graph.node("Min", rank, graph.one_whole(weights.positions - 1))
    words, positions = packed(ids), packed(rank)
    hidden = graph.rows_of(weights.word, words, name="token_ids_must_be_of_the_vocabulary")
    if weights.position is not None:
        place = _position_rows(graph, weights, mask=mask, positions=positions, packed=packed)
        hidden = graph.node("Add", hidden, graph.rows_of(weights.position, place, name="position"))
    if weights.token_type is not None:
        if form.types:
            types = graph.node(
                "Reshape", "token_type_ids", like, name="token_type_ids_must_have_the_shape_of_input_ids"
            )
            kind = graph.rows_of(weights.token_type, packed(types), name="token_types_must_be_of_the_model")
        else:
            kind = graph.vector(weights.token_type[0], name="token_type.weight")
        hidden = graph.node("Add", hidden, kind)
    hidden = graph.norm(hidden, weights.embedding_norm, name="embedding_norm")
    if weights.projection is not None:
        hidden = graph.affine(hidden, weights.projection, name="projection")
    prunes = any(value > 0 for value in plan.thresholds)
    live: Live = Batch(graph, counts=counts, total=total)
    if form.one:
        live = OneText(graph, counts=counts)
        if form.step > 1:
            live = Stepped(graph, counts=counts, size=total, step=form.step)
    rows = Rows(
        live=live,
        hidden=hidden,
        protected=_protected(graph, plan, mask=mask, rank=rank, packed=packed),
        positions=positions if needs_positions(weights, plan) else None,
        origin=_all_rows(graph, total) if (plan.restores or form.passed) and prunes else None,
    )
    return Inputs(rows=rows, mask=mask, counts=counts, wrong=wrong, total=total)


def _refuse(graph: Graph, chosen: str, wrong: str, *, name: str) -> str:
    """(total,) numbers as they are; where a text is `wrong`, a shape that does not fit: an error that has this name.

    ONNX has no other error, and reading outside a table, which is one in onnxruntime, ends OpenVINO's work in silence.
    """
    number = graph.node("ReduceSum", graph.node("Cast", wrong, to=7), graph.whole(0), keepdims=1)
    size = graph.node("Add", graph.node("Shape", chosen), number)
    return str(graph.node("Reshape", chosen, size, name=name))


def _position_rows(graph: Graph, weights: Weights, *, mask: str, positions: str, packed: Any) -> str:
    """(total,) rows of the position table; see `Weights.position_rows`."""
    offset, uncounted = weights.position_offset, weights.uncounted_id
    if uncounted is None:
        return str(graph.node("Add", positions, graph.one_whole(offset)) if offset else positions)
    other = graph.node("Not", graph.node("Equal", "input_ids", graph.one_whole(uncounted)))
    counted = graph.node("And", mask, other)
    rank = graph.node("CumSum", graph.node("Cast", counted, to=7), graph.one_whole(1))
    row = graph.node("Add", rank, graph.one_whole(offset - 1))
    row = graph.node("Min", row, graph.one_whole(weights.positions + offset - 1))
    return str(packed(graph.node("Where", counted, row, graph.one_whole(uncounted))))


def _protected(graph: Graph, plan: PruningPlan, *, mask: str, rank: str, packed: Any) -> str | None:
    """(total,) booleans; None where it is the first tokens, whose place says so. See `protected_tokens`."""
    if plan.protect == ("first",) or not any(value > 0 for value in plan.thresholds[: plan.alone]):
        return None
    flags = []
    if "first" in plan.protect:
        flags.append(graph.node("Equal", rank, graph.one_whole(0)))
    if plan.separator_id is not None:
        separators = graph.node("And", mask, graph.node("Equal", "input_ids", graph.one_whole(plan.separator_id)))
        if "separators" in plan.protect:
            flags.append(separators)
        if "first_segment" in plan.protect:
            before = graph.node("CumSum", graph.node("Cast", separators, to=7), graph.one_whole(1), exclusive=1)
            flags.append(graph.node("Equal", before, graph.one_whole(0)))
    joined = flags[0]
    for flag in flags[1:]:
        joined = graph.node("Or", joined, flag)
    return str(packed(joined))


def _answers(
    graph: Graph, weights: Weights, plan: PruningPlan, means: str, inputs: Inputs, rows: Rows, layers: LayerNodes
) -> dict[str, tuple[str, list[int | str]]]:
    """The outputs by name, with their sizes beside the batch's."""
    width = weights.shape.width
    if plan.reads == "tokens":
        # The head comes first: it leaves few numbers of each token to be put in its place.
        found, count = _head(graph, weights, _final(graph, weights, layers.states(rows)))
        found = _in_place(graph, found, inputs, _places(graph, inputs, rows, layers))
        found = _only_of_texts(graph, found, inputs.wrong, axes=(1, 2))
        if means != "span":
            return {LOGITS: (found, ["length", count])}
        parts = graph.node("Split", found, axis=2, num_outputs=2, outputs=2)
        return {
            name: (graph.node("Squeeze", part, graph.whole(2)), ["length"])
            for name, part in zip(SPAN, parts, strict=True)
        }
    if plan.restores:
        states = _final(graph, weights, layers.states(rows))
        states = _in_place(graph, states, inputs, _places(graph, inputs, rows, layers))
        read = _mean(graph, states, inputs)
    else:
        read = _final(graph, weights, layers.first_tokens(rows))
        states = graph.node("Unsqueeze", read, graph.whole(1))
    result, count = _head(graph, weights, read)
    result = _only_of_texts(graph, result, inputs.wrong)
    if means != "embedding":
        return {LOGITS: (result, [count])}
    return {STATES: (states, ["length" if plan.restores else 1, width]), EMBEDDING: (result, [count])}


def _final(graph: Graph, weights: Weights, states: str) -> str:
    """After the norm behind the last layer, where there is one. (rows, width)."""
    norm = weights.final_norm
    return states if norm is None else graph.norm(states, norm, name="final_norm")


def _places(graph: Graph, inputs: Inputs, rows: Rows, layers: LayerNodes) -> str:
    """(batch, length) the row of `LayerNodes.states` for every place of the input; padding has any."""
    numbers = graph.node("Cast", graph.node("Reshape", inputs.mask, graph.whole(-1)), to=7)
    place = graph.node("Sub", graph.node("CumSum", numbers, graph.one_whole(0)), graph.one_whole(1))
    place = graph.node("Max", place, graph.one_whole(0))  # padding before the first text
    if layers.left:
        place = graph.node("Gather", layers.in_order(rows, inputs.total), place, axis=0)
    return str(graph.node("Reshape", place, graph.node("Shape", inputs.mask)))


def _passed(graph: Graph, inputs: Inputs, rows: Rows, layers: LayerNodes, plan: PruningPlan) -> str:
    """(batch, length) how many layers passed each token on; 0 for padding. From `alone` on these are first tokens."""

    def each(number: int, like: str) -> str:
        return str(graph.node("Expand", graph.one_whole(number), graph.node("Shape", like)))

    last = rows.origin if rows.origin is not None else _all_rows(graph, inputs.total)
    left = layers.gone or [*((origin, index) for _, origin, index in layers.left), (last, layers.alone)]
    numbers = [each(index, origin) for origin, index in left]
    joined = graph.node("Concat", *numbers, axis=0) if len(numbers) > 1 else numbers[0]
    if layers.gone:
        origins = graph.node("Concat", *(origin for origin, _ in left), axis=0)
        joined = graph.node("Gather", joined, back_in_order(graph, origins, inputs.total), axis=0)
    found = graph.node("Gather", joined, _places(graph, inputs, rows, layers), axis=0)
    if not plan.restores:
        rank = graph.node("CumSum", graph.node("Cast", inputs.mask, to=7), graph.one_whole(1))
        found = graph.node("Where", graph.node("Equal", rank, graph.one_whole(1)), graph.one_whole(plan.layers), found)
    return str(graph.node("Where", inputs.mask, found, graph.one_whole(0)))


def _in_place(graph: Graph, values: str, inputs: Inputs, places: str) -> str:
    """(total, n) -> (batch, length, n), zeros for padding."""
    alive = graph.node("Unsqueeze", inputs.mask, graph.whole(2))
    return str(graph.node("Where", alive, graph.node("Gather", values, places, axis=0), graph.number(0.0)))


def _mean(graph: Graph, states: str, inputs: Inputs) -> str:
    total = graph.node("ReduceSum", states, graph.whole(1), keepdims=0)
    column = graph.node("Unsqueeze", inputs.counts, graph.whole(1))
    return str(graph.node("Div", total, graph.node("Cast", column, to=1)))


def _head(graph: Graph, weights: Weights, read: str) -> tuple[str, int]:
    """(batch, width) states that were read -> (batch, outputs), and how many outputs that are."""
    head, width = weights.head, weights.shape.width
    if head.dense is not None:
        read = graph.affine(read, head.dense, name="head.dense")
    if head.activation is not None:
        read = graph.activation(read, head.activation)
    if head.norm is not None:
        read = graph.norm(read, head.norm, name="head.norm")
    if head.output is not None:
        read, width = graph.affine(read, head.output, name="head.output"), len(head.output.bias)
    if head.normalised:
        length = graph.node("ReduceL2", read, graph.whole(-1), keepdims=1)
        read = graph.node("Div", read, graph.node("Max", length, graph.number(1e-12)))
    if head.cut_to is not None and head.cut_to < width:
        read, width = graph.node("Slice", read, graph.whole(0), graph.whole(head.cut_to), graph.whole(1)), head.cut_to
    return read, width


def _only_of_texts(graph: Graph, result: str, wrong: str, *, axes: tuple[int, ...] = (1,)) -> str:
    """NaN for a text without tokens or with too many, in runtimes that do not refuse it."""
    column = graph.node("Unsqueeze", wrong, graph.whole(*axes))
    return str(graph.node("Where", column, graph.number(math.nan), result))


def _kept(graph: Graph, counts: list[str], before: str, *, layers: int) -> str:
    """(batch, layers) tokens that each layer passed on: 1 where first tokens only are passed on."""
    ones = graph.node("Add", graph.node("Mul", before, graph.one_whole(0)), graph.one_whole(1))
    columns = [graph.node("Unsqueeze", part, graph.whole(1)) for part in (*counts, ones)]
    taken = [*columns[:-1], *(columns[-1:] * (layers - len(counts)))]
    return str(graph.node("Concat", *taken, axis=1))


def _all_rows(graph: Graph, total: str) -> str:
    end = graph.node("Squeeze", total, graph.whole(0))
    return str(graph.node("Range", graph.one_whole(0), end, graph.one_whole(1)))


def _one() -> Any:
    import numpy as np

    return np.array(1.0, np.float32)
