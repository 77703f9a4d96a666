"""`prune_` and `unprune_`: put gates into a Hugging Face model and take them out again, in place.

Every encoder layer's class is replaced by a subclass whose forward follows the gates; modules, weights and their names
stay as they are, so the model trains, moves and copies (copy.deepcopy) as before. In mode "off" the stock code runs.

`thresher.save` keeps weights and gates. A state_dict has both, too, for a model that `prune_` was called on;
save_pretrained writes the same, but from_pretrained reads the stock model of it and leaves the thresholds out.
torch.save of the whole model raises PicklingError: the subclasses are made at run time, and pickle looks for names.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thresher.config import PruneConfig, trained_length
from thresher.core.cost import EncoderShape
from thresher.core.gates import ramp
from thresher.core.heads import Head
from thresher.core.layer import LayerSpec, Steps, attention_input, finish, inner_states
from thresher.core.places import Relative, placed
from thresher.errors import ConfigError, ModelError
from thresher.models.adapter import ConvolutionParts, Family, LayerParts
from thresher.models.attention import attention
from thresher.models.gating import Gates
from thresher.models.heads import head_of
from thresher.models.registry import family_named, family_of
from thresher.models.rounding import Products
from thresher.models.slots import taken

GATES_NAME = "thresher_gates"
_HOOKS_NAME = "_thresher_hooks"


def prune_(model: nn.Module, config: PruneConfig | None = None) -> None:
    """Add gates with ramp thresholds to a classifier or an embedder, in place. It then prunes in mode "hard"."""
    family, head, base = family_of(model), head_of(model), _base(model)
    layers = family.layer_passes(base)
    config = config or PruneConfig(collapse_last=head.collapses)
    if config.collapse_last and not head.collapses:
        raise ConfigError(
            f"collapse_last leaves the head nothing to read: it reads {head.reads}; set collapse_last = false"
        )
    _check_rejoin(config.rejoined, head, layers)
    _check_windows(family.specs(base), config.score_queries)
    if hasattr(base, GATES_NAME):
        raise ModelError("the model already has gates; call thresher.unprune_(model) first")
    if getattr(model, "is_gradient_checkpointing", False):
        raise ModelError("gradient checkpointing is not supported; call model.gradient_checkpointing_disable() first")
    thresholds = ramp(config.ramp, layers=layers, final=config.final_threshold, collapse_last=config.collapse_last)
    gates = Gates(config, thresholds, restores=head.restores, rejoins=head.rejoins).to(next(model.parameters()).device)
    base.add_module(GATES_NAME, gates)
    beside = family.convolution(base)
    for index, layer in enumerate(family.layers(base)):
        layer.__class__ = _pruned_class(type(layer), PrunedLayer)
        layer._thresher = (family, gates, beside if index == 0 else None)  # type: ignore[assignment]
    if beside is not None:
        beside.module.__class__ = _pruned_class(type(beside.module), DoneBefore)
        beside.module._thresher = gates
    before = base.register_forward_pre_hook(_begin_forward, with_kwargs=True)
    setattr(base, _HOOKS_NAME, (before, base.register_forward_hook(_end_forward)))


def _check_rejoin(rejoin: int, head: Head, layers: int) -> None:
    if rejoin and not head.restores:
        raise ConfigError(
            f"rejoin = {rejoin} is for heads that read every token, or their mean; this one reads {head.reads}, so "
            "that nobody asks for dropped tokens: set rejoin = 0"
        )
    if rejoin >= layers:
        raise ConfigError(
            f"rejoin = {rejoin} leaves none of the {layers} layers to drop tokens in; set it to {layers - 1} or less"
        )


def _check_windows(specs: Sequence[LayerSpec], score_queries: int) -> None:
    """Refuse queries so few that a token of a whole text is seen by none of them: it would score zero unread."""
    window = min((spec.window for spec in specs if spec.window is not None), default=None)
    if window is not None and not 1 <= score_queries <= window + 1:
        raise ConfigError(
            f"score_queries = {score_queries} leaves tokens that nobody who counts can see: layers of this model see "
            f"{window} positions to each side; set score_queries to 1, or at most to {window + 1}"
        )


def unprune_(model: nn.Module) -> None:
    """Remove the gates, in place: the stock model with its current weights."""
    base = _base(model)
    gates_of(model)
    for hook in getattr(base, _HOOKS_NAME):
        hook.remove()
    delattr(base, _HOOKS_NAME)
    delattr(base, GATES_NAME)
    family = family_named(base.config.model_type)  # type: ignore[union-attr, arg-type]
    beside = family.convolution(base)
    for module in [*family.layers(base), *([] if beside is None else [beside.module])]:
        module.__class__ = type(module).__mro__[2]
        del module._thresher


def gates_of(model: nn.Module) -> Gates:
    """The gates of a pruned model, also through a data-parallel wrapper."""
    gates = getattr(_base(model), GATES_NAME, None)
    if not isinstance(gates, Gates):
        raise ModelError("the model has no gates; call thresher.prune_(model, PruneConfig()) first")
    return gates


def known_of(model: nn.Module) -> dict[str, Any]:
    """What training left with the gates: task, recipe. Nothing without gates."""
    gates = getattr(_base(model), GATES_NAME, None)
    return gates.about if isinstance(gates, Gates) else {}


def length_in_training(model: nn.Module) -> int | None:
    """The longest text in tokens that the model was trained with; None where that is not known."""
    return trained_length(known_of(model))


def weights_without_gates(model: nn.Module) -> dict[str, Tensor]:
    """The model's state as the stock model has it."""
    return {name: value for name, value in model.state_dict().items() if GATES_NAME not in name}


def encoder_shape(model: nn.Module) -> EncoderShape:
    """The sizes that the cost model needs."""
    base = _base(model)
    return family_named(base.config.model_type).shape(base)  # type: ignore[union-attr, arg-type]


def pruned_layer(
    parts: LayerParts,
    hidden: Tensor,
    *,
    gates: Gates,
    bias: Tensor | None,
    training: bool,
    relative: Relative | None = None,
    beside: ConvolutionParts | None = None,
) -> Tensor:
    """One encoder layer whose attention sees live tokens only. hidden: (batch, tokens, width)."""
    hidden = gates.entered(hidden)
    batch, tokens, _ = hidden.shape
    products = gates.products()
    spec, steps = parts.spec, layer_steps(parts, products, training=training)
    query, key, value = (
        part.view(batch, tokens, spec.heads, -1).transpose(1, 2)
        for part in _parted(products("qkv", parts.qkv, attention_input(spec, steps, hidden)), parts=3)
    )
    at, dropout = gates.positions(), parts.attention_dropout if training else 0.0
    query, key = placed(spec, query, key, at, at)
    context, multiplier = attention(spec, query, key, value, gates=gates, bias=bias, relative=relative, dropout=dropout)
    entered = hidden
    context, left = context.transpose(1, 2).reshape(batch, tokens, -1), gates.leave(hidden)
    if left is not None:
        context, hidden = taken(context, left), taken(hidden, left)
    made = finish(spec, steps, context, hidden)
    if beside is not None:
        found = _convolved(beside, entered, training=training)
        made = beside.norm(made + (found if left is None else taken(found, left)))
    output = gates.passed_on(hidden, made)
    return output if multiplier is None else output * multiplier.unsqueeze(-1).to(output.dtype)


def _convolved(beside: ConvolutionParts, hidden: Tensor, *, training: bool) -> Tensor:
    """(batch, tokens, width) of the layer's input, in which padding is zeros."""
    found = beside.convolution(hidden.transpose(1, 2)).transpose(1, 2)
    return beside.activation(F.dropout(found, beside.dropout, training))


def layer_steps(parts: LayerParts, products: Products, *, training: bool) -> Steps[Tensor]:
    """A layer's own modules, with its dropout."""

    def output(context: Tensor) -> Tensor:
        (made,) = products("attention_output", (parts.attention_output,), context)
        return F.dropout(made, parts.attention_output_dropout, training)

    def feed_forward(values: Tensor) -> Tensor:
        inner = inner_states(parts.spec, *_parted(products("ffn_in", parts.ffn_in, values), parts=parts.spec.halves))
        (narrowed,) = products("ffn_out", (parts.ffn_out,), F.dropout(inner, parts.inner_dropout, training))
        return F.dropout(narrowed, parts.ffn_dropout, training)

    return Steps(
        output=output,
        norms=(parts.attention_norm, parts.output_norm),
        feed_forward=feed_forward,
        add=torch.add,
    )


def _parted(made: Sequence[Tensor], *, parts: int) -> Sequence[Tensor]:
    """What so many modules gave, or the parts of what one gave for all."""
    return made[0].chunk(parts, dim=-1) if len(made) == 1 else made


class PrunedLayer(nn.Module):
    """Changes only `forward`: attention over live tokens, then the gates decide. Off means the stock forward."""

    _thresher: tuple[Family, Gates, ConvolutionParts | None]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        family, gates, beside = self._thresher
        if gates.mode == "off":
            return super().forward(hidden_states, *args, **kwargs)
        parts, relative = family.parts(self), None
        if family.relative is not None and parts.spec.relative_rows:
            distances = F.dropout(kwargs["rel_embeddings"], parts.distance_dropout, self.training)
            relative = family.relative(self, distances)
        output = pruned_layer(
            parts,
            hidden_states,
            gates=gates,
            bias=family.position_bias(args[1:], kwargs),  # args[0] is the stock attention mask
            training=self.training,
            relative=relative,
            beside=beside,
        )
        return family.wrap(output)


class DoneBefore(nn.Module):
    """What the stock encoder does after the first layer, and a pruned first layer itself: before tokens leave it."""

    _thresher: Gates

    def forward(self, hidden_states: Tensor, residual_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._thresher.mode == "off":
            return super().forward(hidden_states, residual_states, *args, **kwargs)
        return residual_states


_PRUNED_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def _pruned_class(layer_class: type[nn.Module], ours: type[nn.Module]) -> type[nn.Module]:
    """One subclass per layer class, so that two pruned models of a family have layers of one class."""
    if layer_class not in _PRUNED_CLASSES:
        body = {"__module__": layer_class.__module__}
        _PRUNED_CLASSES[layer_class] = type(f"Pruned{layer_class.__name__}", (ours, layer_class), body)
    return _PRUNED_CLASSES[layer_class]


def _begin_forward(base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell the gates what is padding, and positions if they are given. A module-level function, so that a copied model
    finds its own gates."""
    gates: Gates = getattr(base, GATES_NAME)
    if gates.mode == "off":
        return
    if kwargs.get("output_attentions") or getattr(base.config, "output_attentions", False):
        raise ModelError("a pruned model returns no attentions; read gates_of(model).trace, or set its mode to 'off'")
    input_ids = kwargs.get("input_ids", args[0] if args else None)
    attention_mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    if attention_mask is None:
        reference = input_ids if input_ids is not None else kwargs["inputs_embeds"][..., 0]
        attention_mask = torch.ones_like(reference, dtype=torch.long)
    position_ids = kwargs.get("position_ids")
    if len(args) > 2:  # where they stand in the call is the family's
        position_ids = inspect.signature(base.forward).bind(*args, **kwargs).arguments.get("position_ids")
    gates.begin(attention_mask, input_ids, position_ids)


def _end_forward(base: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    getattr(base, GATES_NAME).end()


def _base(model: nn.Module) -> nn.Module:
    wrapped = getattr(model, "module", model)
    base: nn.Module = getattr(wrapped, "base_model", wrapped)
    return base
