"""Six steps of a tiny Llama with transformers' Trainer: 2 sequences of 16 tokens per microbatch, 2 microbatches.

Arguments: a folder for results; `plain`, `recorded` for the snippet of the docs, `joined` for the same inside a run of
the script, `frozen` for a training of the last layer alone, `packed` for two documents per sequence, `liger` for
Liger's kernels, `lora` for PEFT's adapters, or `fails` for an error of rank 0 in its third step; a tracker, or `none`.
With a tracker, the data wait for the first numbers of the agent.
"""

import sys
from contextlib import nullcontext
from itertools import count

import torch
from agent_wait import WaitingRows
from result import write_result
from snippets import snippet
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import traincope

folder, mode, tracker = sys.argv[1:]
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    vocab_size=128,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 128, (64, 16), generator=torch.Generator().manual_seed(1))
positions = {"position_ids": torch.arange(16) % 8} if mode == "packed" else {}
dataset = WaitingRows([{"input_ids": row, "labels": row, **positions} for row in tokens], folder, tracker, before=16)
arguments = TrainingArguments(
    folder,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=6,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    report_to=tracker,
    disable_tqdm=True,
    use_liger_kernel=mode == "liger",
)
if mode == "frozen":
    model.requires_grad_(requires_grad=False)
    model.model.layers[-1].requires_grad_()
if mode == "liger":
    from interpreted_liger import interpret

    interpret()
if mode == "lora":
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
if mode == "fails" and arguments.process_index == 0:
    calls = count()

    def fail(*_: object) -> None:
        if next(calls) == 4:
            raise ValueError("no such token")

    model.lm_head.register_forward_hook(fail)
with traincope.run() if mode == "joined" else nullcontext() as run:
    if run is not None:
        run.describe(peak_flops=1e9)
    if mode == "plain":
        trainer = Trainer(model, arguments, train_dataset=dataset)
        trainer.train()
    else:
        exec(snippet("Hugging Face Trainer"))
write_result(folder, model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
