"""Sentence embedders: a Hugging Face encoder and a pooling without weights, seen from outside like any other model.

A saved one is a sentence-transformers folder, in the layout that versions 2 to 6 read, and a folder for AutoModel.
"""

import inspect
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from thresher.core.heads import Head
from thresher.core.scores import at_least_float32
from thresher.errors import ModelError
from thresher.models.registry import family_named
from thresher.models.sentence_folder import read_stored
from thresher.models.stored import MODULES, READS, Stored, write_folder

PREFIX = "encoder"
POOLER = "pooler."


def pooled(states: Tensor, attention_mask: Tensor, head: Head) -> Tensor:
    """Embeddings (batch, width) of last states (batch, tokens, encoder's width), in float32 or better.

    attention_mask: (batch, tokens), 1 for tokens. As in sentence-transformers, vectors are scaled before they are cut.
    """
    states = at_least_float32(states)
    if head.reads == "first":
        found = states[:, 0]
    else:
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        found = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    if head.normalised:
        found = F.normalize(found, dim=-1)
    return found if head.width is None else found[:, : head.width]


class Embedder(nn.Module):
    """An encoder and the head that pools its last states. `logits` of its output are the embeddings.

    `beside` holds weights that the folder has and no embedding reads (the encoder's own pooler): they are written
    back, so that a saved folder has all that the first one had, and are never trained.
    """

    base_model_prefix = PREFIX

    def __init__(self, encoder: Any, stored: Stored | Head, *, beside: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        self.stored = stored if isinstance(stored, Stored) else Stored(stored)
        self.head = self.stored.head
        if self.head.means != "embedding" or self.head.reads not in READS.values():
            raise ModelError(
                f"a head that reads {self.head.reads} and means {self.head.means} makes no embedder; it must read "
                f"{' or '.join(READS.values())} and mean embedding"
            )
        if (self.head.width or 1) > encoder.config.hidden_size:
            raise ModelError(f"width = {self.head.width}, and the encoder's width is {encoder.config.hidden_size}")
        self.thresher_head = self.head  # as on every model that says what its outputs mean
        self.encoder, self.beside = encoder, dict(beside or {})
        self._takes_types = "token_type_ids" in inspect.signature(encoder.forward).parameters

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_hidden_states: bool = False,
        **more: Any,
    ) -> Any:
        """input_ids, attention_mask, token_type_ids: (batch, tokens). The output's logits: (batch, width)."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        if attention_mask is None:
            attention_mask = input_ids.new_ones(input_ids.shape)
        if token_type_ids is not None and self._takes_types:
            more["token_type_ids"] = token_type_ids
        more.pop("return_dict", None)
        output = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=output_hidden_states, **more
        )
        logits = pooled(output.last_hidden_state, attention_mask, self.head)
        # The library annotates its outputs with the tensor types of the past.
        return SequenceClassifierOutput(logits=logits, hidden_states=output.hidden_states)  # type: ignore[arg-type]

    @property
    def config(self) -> Any:
        return self.encoder.config

    @property
    def base_model(self) -> Any:
        return self.encoder

    @property
    def device(self) -> Any:
        return self.encoder.device

    @property
    def dtype(self) -> Any:
        return self.encoder.dtype

    @property
    def is_gradient_checkpointing(self) -> bool:
        return bool(self.encoder.is_gradient_checkpointing)

    def gradient_checkpointing_disable(self) -> None:
        self.encoder.gradient_checkpointing_disable()

    def get_input_embeddings(self) -> Any:
        return self.encoder.get_input_embeddings()

    def set_attn_implementation(self, name: str) -> None:
        self.encoder.set_attn_implementation(name)

    def save_pretrained(self, folder: str | Path, *, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write a folder that sentence_transformers and AutoModel open. `state_dict`: this model's, or part of it."""
        state = self.state_dict() if state_dict is None else state_dict
        foreign = [name for name in state if not name.startswith(f"{PREFIX}.")]
        if foreign:
            raise ModelError(f"weight '{foreign[0]}' is not an embedder's; its names start with '{PREFIX}.'")
        weights = {name.removeprefix(f"{PREFIX}."): value for name, value in state.items()}
        self.encoder.save_pretrained(folder, state_dict={**weights, **self.beside})
        write_folder(Path(folder), self.stored, width=self.config.hidden_size)


def load_embedder(name: str | Path, config: Any) -> Embedder:
    """A sentence embedder from a folder or a hub name, in evaluation mode. config: the encoder's, already read.

    The encoder's own pooler may be missing; any other missing weight is an error, as the library would make one up.
    """
    from transformers import AutoModel

    family_named(config.model_type)
    stored = read_stored(name, config)
    if stored is None or stored.head.means != "embedding":
        raise ModelError(f"'{name}' is not a sentence embedder: it has no {MODULES} with a pooling")
    try:
        encoder, loading = AutoModel.from_pretrained(
            str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else str(name),
            config=config,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except Exception as error:  # the loaders raise many kinds, from safetensors' to bare Exception
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"cannot load a sentence embedder from '{name}': {lines[0]}") from error
    missing = sorted(loading["missing_keys"])
    lost = [key for key in missing if not key.startswith(POOLER)]
    if lost:
        raise ModelError(
            f"'{name}' lacks weights that its configuration asks for, {lost[0]} among {len(lost)}; "
            "the folder is damaged or its config.json is of another model"
        )
    beside = take_pooler_(encoder)
    return Embedder(encoder, stored, beside={} if missing else beside).eval()


def take_pooler_(encoder: Any) -> dict[str, Tensor]:
    """Take an encoder's own pooler away, in place, and give its weights by their names in the encoder.

    No embedding reads it: it would be computed for nothing, and wait in vain for gradients.
    """
    weights = {name: value for name, value in encoder.state_dict().items() if name.startswith(POOLER)}
    if hasattr(encoder, "pooler"):
        encoder.pooler = None
    return weights
