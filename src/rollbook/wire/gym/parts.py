"""The parts that content may be made of: as chat completions has them, and as the Responses API does."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.core.json import JSON

Part = dict[str, JSON]

_INPUT = {"text": "input_text", "video_url": "input_video"}
_CHAT = {"input_text": "text", "output_text": "text", "input_video": "video_url"}


def input_parts(parts: Sequence[Part]) -> list[Part]:
    """Chat parts as input parts; a part that only one of them knows stays as it is."""
    return [_input_part(part) for part in parts]


def chat_parts(parts: Sequence[Part]) -> list[Part]:
    """The way back."""
    return [_chat_part(part) for part in parts]


def _input_part(part: Part) -> Part:
    kind = part.get("type")
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        image = {"image_url" if name == "url" else name: value for name, value in part["image_url"].items()}
        return {"type": "input_image", **image}
    return {**part, "type": _INPUT[kind]} if kind in _INPUT else part


def _chat_part(part: Part) -> Part:
    kind = part.get("type")
    if kind == "input_image":
        image = {"url" if name == "image_url" else name: value for name, value in part.items() if name != "type"}
        return {"type": "image_url", "image_url": image}
    return {**part, "type": _CHAT[kind]} if kind in _CHAT else part


def text_of(parts: Sequence[Part]) -> str:
    """All that parts say; a refusal is what the model said, too."""
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
