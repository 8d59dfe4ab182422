"""Hugging Face's Trainer on a tiny GPT-2, with accumulation, an evaluation and a checkpoint."""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS, MICROBATCHES, BATCH, EVERY = 12, 2, 4, 6
LAYERS, HIDDEN, HEADS, TOKENS, VOCABULARY = 2, 32, 2, 16, 64

losses: list[float] = []


def examples(count: int) -> list[dict[str, torch.Tensor]]:
    texts = torch.randint(VOCABULARY, (count, TOKENS), generator=torch.Generator().manual_seed(count))
    return [{"input_ids": text, "labels": text} for text in texts]


def loss_of(outputs, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None) -> torch.Tensor:
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    losses.append(loss.item())
    return loss / (labels[:, 1:].numel() if num_items_in_batch is None else num_items_in_batch)


def main(directory: str) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    arguments = TrainingArguments(
        output_dir=f"{directory}/output",
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=MICROBATCHES,
        eval_strategy="steps",
        eval_steps=EVERY,
        save_steps=EVERY,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=examples(STEPS * MICROBATCHES * BATCH * 2),
        eval_dataset=examples(4 * BATCH),
        compute_loss_func=loss_of,
    )
    trainer.train()
    Path(directory, f"losses-{trainer.args.process_index}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    main(sys.argv[1])
