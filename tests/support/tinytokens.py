"""A real tokenizer, trained here in a second, and chat templates that behave as those of well-known models do.

CHATML     strips the thinking of earlier turns, calls tools between tags, ends turns with <|im_end|>
HEADERS    ends turns with <|eot|>, which is not the tokenizer's end of text
OPENINGS   has no end of a turn at all: an answer ends with the token that opens the next one
RETURNING  samples <|return|> at the end of an answer, and writes <|end|> there in a history
PLAIN      has no special token: roles and ends are ordinary text
"""

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|header|>", "<|user|>", "<|assistant|>")
SPECIAL += ("<|observation|>", "<|system|>", "<|start|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
WRITTEN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of their own that a decoder does not leave out."""

CHATML = """
{%- set ns = namespace(asked=0) %}
{%- for m in messages %}{% if m.role == "user" %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}
{{- "<|im_start|>system\n# Tools\n" }}
{%- for tool in tools %}{{ tool | tojson }}{{ "\n" }}{% endfor %}
{{- "<|im_end|>\n" }}
{%- endif %}
{%- for m in messages %}
{%- set text = m.content or "" %}
{%- if m.role == "assistant" %}
{{- "<|im_start|>assistant\n" }}
{%- if m.reasoning and loop.index0 > ns.asked %}{{ "<think>\n" ~ m.reasoning ~ "\n</think>\n\n" }}{% endif %}
{{- text.split("</think>")[-1].lstrip("\n") if loop.index0 < ns.asked else text }}
{%- for call in m.tool_calls or [] %}
{{- "\n" if text or not loop.first else "" }}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) }}
{{- "}\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\n" }}
{%- elif m.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{ "<|im_start|>user" }}{% endif %}
{{- "\n<tool_response>\n" ~ text ~ "\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{ "<|im_end|>\n" }}{% endif %}
{%- else %}
{{- "<|im_start|>" ~ m.role ~ "\n" ~ text ~ "<|im_end|>\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}
""".strip()

HEADERS = (
    "{% for m in messages %}{{ '<|header|>' ~ m.role ~ '<|header|>\n\n' ~ (m.content or '') | trim ~ '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|header|>assistant<|header|>\n\n' }}{% endif %}"
)

OPENINGS = (
    "{% for m in messages %}{{ '<|observation|>' if m.role == 'tool' else '<|' ~ m.role ~ '|>' }}"
    "{{ '\n' ~ (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name ~ '\n' ~ (c.function.arguments | tojson) }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

RETURNING = (
    "{% for m in messages %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ (m.content or '') ~ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|message|>' }}{% endif %}"
)

PLAIN = (
    "{% for m in messages %}{{ m.role ~ ': ' ~ (m.content or '') ~ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def train():
    """A byte-level BPE tokenizer of about a thousand tokens, trained on the licence, which stays as it is."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=960, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([(Path(__file__).parents[2] / "LICENSE").read_text()], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in WRITTEN])
    return tokenizer


class Templated:
    """A tokenizer with a template: conversations as ids, as a server would render them."""

    def __init__(self, tokenizer, template):
        import jinja2

        self.tokenizer = tokenizer
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value)
        self._template = environment.from_string(template)

    def text(self, messages, tools=None, add_generation_prompt=True):
        return self._template.render(
            messages=[plain(m) for m in messages], tools=tools, add_generation_prompt=add_generation_prompt
        )

    def render(self, messages, tools=None):
        return self.ids(self.text(messages, tools))

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def id(self, token):
        return self.tokenizer.token_to_id(token)


def plain(message):
    """A message as templates see it: absent fields are absent, arguments are objects."""
    import msgspec

    told = msgspec.to_builtins(message)
    for call in told.get("tool_calls") or ():
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return told
