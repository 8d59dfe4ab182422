"""TRL's GRPOTrainer, unchanged, on a tiny Llama: 40 steps of 4 completions on each of 2 ranks.

Arguments: a folder for results; `plain`, or `slow` for a reward function that is 0.1 s slower on rank 1; a tracker that
is not used. `reward-RANK.json` has the seconds of each call of the reward function, by its own clock.
"""

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from result import write_result
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

folder, mode, _ = sys.argv[1:]
torch.manual_seed(0)
words = ["<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz "]
letters = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
model = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=len(words),
        max_position_embeddings=128,
    )
)
arguments = GRPOConfig(
    folder,
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=12,
    max_steps=40,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
    disable_tqdm=True,
)
seconds = []


def lengths(completions: list[str], **_: object) -> list[float]:
    began = time.perf_counter()
    time.sleep(0.12 if mode == "slow" and arguments.process_index == 1 else 0.02)
    seconds.append(time.perf_counter() - began)
    return [float(len(each)) for each in completions]


trainer = GRPOTrainer(
    model,
    lengths,
    args=arguments,
    processing_class=PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", eos_token="<eos>"),
    train_dataset=Dataset.from_dict({"prompt": ["hello", "good day", "abc", "xyz"] * 16}),
)
trainer.train()
write_result(folder, model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
Path(folder, f"reward-{arguments.process_index}.json").write_text(json.dumps(seconds))
