"""SmolLM2-135M-Instruct with the weights of its GGUF file, which `rollbook run` downloads as the embedded model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from model import Model, Shape
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

EMBEDDED = Path("~/.cache/rollbook/SmolLM2-135M-Instruct.Q4_1.gguf")
END = "<|im_end|>"
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
        self.end = tokenizer.eos_token_id

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
    source, tokenizer = load_source(gguf)
    return convert(source), ChatTokenizer(tokenizer)


def load_source(gguf: Path | None = None) -> tuple[Any, Any]:
    """Return the model and the tokenizer of the file as transformers has them, in float32 on the processor."""
    path = (gguf or EMBEDDED).expanduser()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.eos_token = END  # the file names another token
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    # A model from such a file counts as quantized, and would not be trained, although its weights are float32.
    del loaded.config.quantization_config
    source = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    source.load_state_dict(loaded.state_dict())
    return source, tokenizer


def convert(source: Any) -> Model:
    """Return a Llama of transformers as our model, in bfloat16 on a GPU and else in float32."""
    config = source.config
    shape = Shape(
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.intermediate_size,
        config.rope_parameters["rope_theta"],
        config.rms_norm_eps,
    )
    model = Model(shape)
    model.load_state_dict(rename_weights(source.state_dict(), shape.layers))
    return model.to("cuda", torch.bfloat16) if torch.cuda.is_available() else model


def rename_weights(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return the weights of a Llama of transformers under our names."""
    names = {"embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    for layer in range(layers):
        names |= {
            f"blocks.{layer}.{ours}.weight": f"model.layers.{layer}.{theirs}.weight" for ours, theirs in NAMES.items()
        }
    return {ours: weights[theirs] for ours, theirs in names.items()}
