"""A language model of the Llama family in plain PyTorch; the server and the trainer run the same code.

Matrix products run in the type of the weights (bfloat16 on a GPU). The residual stream, the normalisation and the
logits are float32: rounding there is what makes the logprobs of two programs differ.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    rope_base: float = 10_000.0
    epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        """Numbers in one head."""
        return self.width // self.heads


class Cache:
    """Keys and values of a fixed number of sequences: [layer, key or value, slot, head, position, number]."""

    def __init__(self, shape: Shape, slots: int, length: int, like: Tensor) -> None:
        self.data = like.new_zeros(shape.layers, 2, slots, shape.kv_heads, length, shape.head_size)


class Norm(nn.Module):
    """Root mean square normalisation, in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return it in the type of the weights."""
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        return (scaled * self.weight.float()).to(self.weight.dtype)


class Block(nn.Module):
    """Attention and a gated layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        narrow = shape.kv_heads * shape.head_size
        self.attention_norm, self.mlp_norm = (Norm(shape.width, shape.epsilon) for _ in range(2))
        self.q = nn.Linear(shape.width, shape.width, bias=False)
        self.k, self.v = (nn.Linear(shape.width, narrow, bias=False) for _ in range(2))
        self.o = nn.Linear(shape.width, shape.width, bias=False)
        self.gate, self.up = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [sequence, head, position, number], the first two rotated by position."""
        y, size = self.attention_norm(x), self.shape.head_size
        q, k, v = (f(y).unflatten(-1, (-1, size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return rotate(q, angles), rotate(k, angles), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add what was attended to, then the gated layer."""
        x = x + self.o(attended.transpose(1, 2).flatten(2)).float()
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)).float()


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of each head by position."""
    cos, sin = angles
    left, right = x.float().chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


class Model(nn.Module):
    """Token ids in, float32 logits out. The embeddings are the output layer too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.epsilon)
        nn.init.normal_(self.embeddings.weight, std=shape.width**-0.5)

    def forward(self, ids: Tensor, cache: Cache | None = None, slots: Tensor | None = None) -> Tensor:
        """Return the last hidden states of whole sequences, padded on the right; fill the slots of a cache."""
        x, length = self.embeddings(ids).float(), ids.shape[1]
        angles = self._angles(torch.arange(length, device=ids.device)[None])
        for number, block in enumerate(self.blocks):
            q, k, v = block.project(x, angles)
            if cache is not None:
                cache.data[number, 0, slots, :, :length], cache.data[number, 1, slots, :, :length] = k, v
            # Padding is at the end, so the causal mask alone keeps it out.
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        return self.norm(x)

    def decode(self, ids: Tensor, positions: Tensor, cache: Cache, length: int) -> Tensor:
        """Return the hidden state of one more token of every slot; `length` positions are looked back at."""
        x, everyone = self.embeddings(ids)[:, None].float(), torch.arange(len(ids), device=ids.device)
        angles = self._angles(positions[:, None])
        kv_heads, size = self.shape.kv_heads, self.shape.head_size
        seen = torch.arange(length, device=ids.device) <= positions[:, None]
        # The query heads that share a key are taken as positions of one head: no key is copied.
        mask = seen[:, None, None].expand(-1, kv_heads, self.shape.heads // kv_heads, -1)
        for number, block in enumerate(self.blocks):
            q, k, v = block.project(x, angles)
            cache.data[number, 0, everyone, :, positions] = k[:, :, 0]
            cache.data[number, 1, everyone, :, positions] = v[:, :, 0]
            keys, values = cache.data[number, 0, :, :, :length], cache.data[number, 1, :, :, :length]
            shared = q.reshape(len(ids), kv_heads, -1, size)
            attended = F.scaled_dot_product_attention(shared, keys, values, attn_mask=mask)
            x = block.finish(x, attended.reshape(len(ids), -1, 1, size))
        return self.norm(x)[:, 0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of hidden states, in float32."""
        return F.linear(hidden.float(), self.embeddings.weight.float())

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.shape.head_size, 2, device=positions.device).float() / self.shape.head_size
        angles = positions[:, None, :, None].float() * self.shape.rope_base**-half
        return angles.cos(), angles.sin()
