"""A language model of a few thousand random weights, and a tokenizer whose tokens are letters."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

LETTERS = "abcdefghijklmnopqrstuvwxyz "
TEMPLATE = "{% for m in messages %}{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<say>{% endif %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter, and four special ones."""
    words = ["<pad>", "<end>", "<say>", "<unk>", *LETTERS]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, padding_side="left", extra_special_tokens=["<say>"], **special
    )
    fast.chat_template = TEMPLATE
    return fast


def model(tokens: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Two layers, drawn by the seed."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        pad_token_id=tokens.pad_token_id,
        eos_token_id=tokens.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)
