"""A language model of a few hundred kilobytes, made here: python tests/e2e/vllm/tinymodel.py FOLDER

It has the architecture of Qwen3 and a tokenizer and template of its own. A minute of training teaches it two things:
asked to add, it thinks, calls `add`, and then says what that returned; asked for noise, it writes tokens at random,
bytes that are no text included. Everything else about it is noise as well.
"""

import json
import random
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))

from rollbook.core import Function, Message, ToolCall
from support.tinytokens import CHATML, SPECIAL, Templated, train

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
STEPS, ROWS, LENGTH = 400, 8, 256
CONTEXT = 4096


def make(folder):
    """Write the model with its tokenizer."""
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    tokenizer = train()
    templated = Templated(tokenizer, CHATML)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        bos_token_id=None,
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    model = Qwen3ForCausalLM(config)
    teach(model, templated)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float32).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_config(folder, config.eos_token_id)


def write_config(folder, end):
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHATML,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(SPECIAL),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "top_k": 20}))


def teach(model, templated):
    """Train on conversations of both kinds; only what the model is to write counts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=STEPS)
    for step in range(STEPS):
        rows = [lesson(templated) for _ in range(ROWS)]
        ids = torch.tensor([row[0][:LENGTH] + [0] * (LENGTH - len(row[0])) for row in rows])
        labels = torch.tensor([row[1][:LENGTH] + [-100] * (LENGTH - len(row[1])) for row in rows])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


def lesson(templated):
    """The ids of a conversation, and those of them that are to be written."""
    if random.random() < 0.4:
        asked = [Message("user", "noise")]
        answer = [random.randrange(templated.id("<|endoftext|>")) for _ in range(random.randrange(4, 40))]
        return labelled([(templated.render(asked), [*answer, templated.id("<|im_end|>")])])
    a, b = random.randrange(10), random.randrange(10)
    asked = [Message("user", f"add {a} {b}")]
    call = Function("add", json.dumps({"a": a, "b": b}))
    called = Message("assistant", None, f"{a} and {b}", [ToolCall("1", call)])
    told = [*asked, called, Message("tool", str(a + b))]
    first = templated.render(asked, [TOOL])
    written = templated.render([*asked, called], [TOOL])[len(first) :]
    end = written.index(templated.id("<|im_end|>")) + 1
    second = templated.render(told, [TOOL])
    return labelled([(first, written[:end]), (second, templated.ids(f"It is {a + b}.<|im_end|>"))])


def labelled(turns):
    ids, labels = [], []
    for prompt, answer in turns:
        between = prompt[len(ids) :]
        ids += between + answer
        labels += [-100] * len(between) + answer
    return ids, labels


if __name__ == "__main__":
    make(Path(sys.argv[1]))
