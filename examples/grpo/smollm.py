"""SmolLM2-135M-Instruct with the weights of its GGUF file, which `rollbook run` downloads as the embedded model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from model import Model, Shape
from transformers import AutoModelForCausalLM, AutoTokenizer

EMBEDDED = Path("~/.cache/rollbook/SmolLM2-135M-Instruct.Q4_1.gguf")
NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{name: f"self_attn.{name}_proj" for name in "qkvo"},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


class ChatTokenizer:
    """The tokenizer of the file, with its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")  # the file names another token

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Apply the chat template."""
        ids = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return list(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text, each space as it is."""
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)


def load(gguf: Path | None = None) -> tuple[Model, ChatTokenizer]:
    """Return the model, in bfloat16 on a GPU and else in float32, and its tokenizer."""
    path = (gguf or EMBEDDED).expanduser()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    source = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    on_gpu = torch.cuda.is_available()
    model = convert(source).to("cuda" if on_gpu else "cpu", torch.bfloat16 if on_gpu else torch.float32)
    return model, ChatTokenizer(tokenizer)


def convert(source: Any) -> Model:
    """Return a Llama of transformers as our model."""
    config = source.config
    rope = config.rope_parameters["rope_theta"]
    model = Model(
        Shape(
            config.vocab_size,
            config.hidden_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.intermediate_size,
            rope,
            config.rms_norm_eps,
        )
    )
    weights = {"embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    for layer in range(config.num_hidden_layers):
        weights |= {f"blocks.{layer}.{a}.weight": f"model.layers.{layer}.{b}.weight" for a, b in NAMES.items()}
    given = source.state_dict()
    model.load_state_dict({ours: given[theirs] for ours, theirs in weights.items()})
    return model
