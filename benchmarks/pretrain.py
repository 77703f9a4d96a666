"""A small ModernBERT or DeBERTa-v3 of real text, by masked words, in minutes: so that what it attends to is not random.

    python benchmarks/pretrain.py modernbert --texts imdb.jsonl --tokenizer FOLDER --out FOLDER [--minutes 10]

How well it finds hidden words in texts that were kept back is printed and recorded (pretrain.jsonl). It is no good
encoder: it shows that such a model is trained, pruned and executed end to end, nothing of the quality that published
weights would have. `thresher prune FOLDER --finetune always` goes on from there.
"""

import argparse
import json
import lzma
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import HERE, RESULTS, made_by
from torch import Tensor

from thresher.records import append_record

SIZES = {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "share_att_key": True}
DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "intermediate_size": 1536}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": ("modernbert", {**SIZES, "intermediate_size": 768, "max_position_embeddings": 2048}),
    "deberta-v3": ("deberta-v2", {**SIZES, **DEBERTA}),
}
MASKED, IGNORED = 0.3, -100  # of the tokens, as ModernBERT was trained
LENGTH, RATE, WARM_UP = 512, 5e-4, 200
KEPT_BACK = 500  # texts at the end of the file


def read_texts(file: Path, column: str) -> list[str]:
    opened = lzma.open(file, "rt", encoding="utf-8") if file.suffix == ".xz" else file.open(encoding="utf-8")
    with opened as lines:
        return [json.loads(line)[column] for line in lines]


def new_model(kind: str, tokenizer: Any) -> Any:
    from transformers import AutoConfig, AutoModelForMaskedLM

    name, sizes = KINDS[kind]
    special = {"pad_token_id": tokenizer.pad_token_id, "cls_token_id": tokenizer.cls_token_id}
    special |= {"bos_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    special |= {"eos_token_id": tokenizer.sep_token_id}
    config = AutoConfig.for_model(name, vocab_size=len(tokenizer), **special, **sizes)
    return AutoModelForMaskedLM.from_config(config)


def batches(ids: list[list[int]], size: int, pad: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Padded ids and their mask, texts in a new order every time, without end."""
    random = torch.Generator().manual_seed(0)
    while True:
        for rows in torch.randperm(len(ids), generator=random).split(size):
            longest = max(len(ids[row]) for row in rows.tolist())
            part = torch.tensor([ids[row] + [pad] * (longest - len(ids[row])) for row in rows.tolist()])
            yield part, (part != pad).long()


def masked(ids: Tensor, attention: Tensor, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Inputs with hidden words, and the words to be found."""
    chosen = (torch.rand(ids.shape) < MASKED) & attention.bool()
    for special in tokenizer.all_special_ids:
        chosen &= ids != special
    return ids.masked_fill(chosen, tokenizer.mask_token_id), ids.masked_fill(~chosen, IGNORED)


def train(model: Any, ids: list[list[int]], tokenizer: Any, *, device: str, minutes: float, size: int) -> int:
    """Print the loss of every hundred steps; returns how many steps there were."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    end, recent = time.monotonic() + 60 * minutes, []
    for step, (part, attention) in enumerate(batches(ids, size, tokenizer.pad_token_id)):
        left = max(0.0, (end - time.monotonic()) / (60 * minutes))
        if not left:
            return step
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, left)
        inputs, labels = masked(part, attention, tokenizer)
        with torch.autocast(device, torch.bfloat16):
            loss = model(
                input_ids=inputs.to(device), attention_mask=attention.to(device), labels=labels.to(device)
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        if len(recent) == 100:
            print(f"step {step + 1}: loss {float(torch.stack(recent).mean()):.3f}", flush=True)
            recent = []
    raise AssertionError("batches have no end")


@torch.inference_mode()
def found_words(model: Any, ids: list[list[int]], tokenizer: Any, *, device: str, size: int) -> dict[str, float]:
    """Loss and share found of the hidden words in these texts, and the share that always saying their commonest
    would find."""
    model.eval()
    losses, right, said = [], [], []
    parts = batches(ids, size, tokenizer.pad_token_id)
    for _ in range(-(-len(ids) // size)):
        part, attention = next(parts)
        inputs, labels = masked(part, attention, tokenizer)
        logits = model(input_ids=inputs.to(device), attention_mask=attention.to(device)).logits
        hidden = labels != IGNORED
        logits, labels = logits[hidden.to(device)].float(), labels[hidden]
        losses.append(torch.nn.functional.cross_entropy(logits, labels.to(device), reduction="none").cpu())
        right.append(logits.argmax(-1).cpu() == labels)
        said.append(labels)
    words = torch.cat(said)
    commonest = float(words.bincount().max()) / len(words)
    accuracy = float(torch.cat(right).float().mean())
    return {"loss": float(torch.cat(losses).mean()), "accuracy": accuracy, "commonest": commonest, "words": len(words)}


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines, perhaps as .xz")
    parser.add_argument("--column", default="text")
    parser.add_argument("--tokenizer", required=True, help="a folder with a tokenizer that has a mask token")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--record", type=Path, help="pretrain.jsonl of the device's records if not given")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    texts = read_texts(options.texts, options.column)
    if len(texts) <= KEPT_BACK:
        parser.error(f"{options.texts} has {len(texts)} texts; {KEPT_BACK} are kept back, so give a file with more")
    ids = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
    model = new_model(options.kind, tokenizer)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learned, back = ids[:-KEPT_BACK], ids[-KEPT_BACK:]
    steps = train(model, learned, tokenizer, device=device, minutes=options.minutes, size=options.batch)
    found = found_words(model.float(), back, tokenizer, device=device, size=options.batch)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    row = {"kind": options.kind, "texts": len(learned), "steps": steps, "batch": options.batch, **found}
    print(", ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float)))
    file = (RESULTS if device == "cpu" else HERE / "gpu") / "pretrain.jsonl"
    append_record(options.record or file, {**row, "minutes": options.minutes, **made_by("pretrain.py", device=device)})


if __name__ == "__main__":
    main()
