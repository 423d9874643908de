"""Modules for models of your own."""

import torch
import torch.nn.functional as F
from torch import nn

from . import functional as C


class RMSNorm(nn.Module):
    """The weight of an RMSNorm. The block that holds it fuses the norm; called by itself it is torch's."""

    def __init__(self, dim: int, eps: float = 1e-6, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """The projections of grouped-query attention."""

    def __init__(self, dim, heads, kv_heads, head_dim, qk_norm, eps, device=None, dtype=None):
        super().__init__()
        made = {"bias": False, "device": device, "dtype": dtype}
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.wq = nn.Linear(dim, heads * head_dim, **made)
        self.wk = nn.Linear(dim, kv_heads * head_dim, **made)
        self.wv = nn.Linear(dim, kv_heads * head_dim, **made)
        self.wo = nn.Linear(heads * head_dim, dim, **made)
        if qk_norm:
            self.q_norm = RMSNorm(head_dim, eps, device, dtype)
            self.k_norm = RMSNorm(head_dim, eps, device, dtype)


class FeedForward(nn.Module):
    """The weights of a gated MLP: w2(act(w1 x) * w3 x)."""

    def __init__(self, dim, hidden_dim, device=None, dtype=None):
        super().__init__()
        made = {"bias": False, "device": device, "dtype": dtype}
        self.w1 = nn.Linear(dim, hidden_dim, **made)
        self.w2 = nn.Linear(hidden_dim, dim, **made)
        self.w3 = nn.Linear(dim, hidden_dim, **made)


class TransformerBlock(nn.Module):
    """A pre-norm Transformer block (Llama, Mistral, Qwen3) whose every operator but attention runs in a product's epilogue.

    Parameters have the names of torchtitan's and Meta's Llama (attention.wq, feed_forward.w1, attention_norm, ...), so their
    checkpoints load. Rotations are by halves, as Hugging Face stores weights; permute query and key weights of Meta's
    checkpoints first.

    activation   "silu" or "gelu_tanh";   qk_norm  an RMSNorm of every query and key head (Qwen3)
    recompute    as for `attention_output_mlp`: less memory, a little slower
    attention    called as attention(q, k, v) with [batch, heads, sequence, head_dim] and kv_heads for k and v; None: causal
                 torch.nn.functional.scaled_dot_product_attention
    """

    def __init__(self, dim: int, heads: int, hidden_dim: int, kv_heads: int | None = None, head_dim: int | None = None, *,
                 eps: float = 1e-6, qk_norm: bool = False, activation: str = "silu", attention=None,
                 recompute: bool = False, device=None, dtype=None):
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"{heads} heads are no multiple of {kv_heads} kv_heads")
        if head_dim is None and dim % heads:
            raise ValueError(f"dim {dim} is no multiple of {heads} heads; give head_dim")
        head_dim = dim // heads if head_dim is None else head_dim
        if activation not in ("silu", "gelu_tanh"):
            raise ValueError(f"activation {activation!r}; expected 'silu' or 'gelu_tanh'")
        self.attention = Attention(dim, heads, kv_heads, head_dim, qk_norm, eps, device, dtype)
        self.feed_forward = FeedForward(dim, hidden_dim, device, dtype)
        self.attention_norm = RMSNorm(dim, eps, device, dtype)
        self.ffn_norm = RMSNorm(dim, eps, device, dtype)
        self.activation, self.eps, self.qk_norm, self.recompute = activation, eps, qk_norm, recompute
        self._attend = attention or _causal

    def forward(self, x, table, positions=None):
        """x: [batch, sequence, dim]; table: see rope_table; positions: integers [sequence] or [batch, sequence]."""
        a, norm = self.attention, self.attention_norm.weight
        if isinstance(table, torch.Tensor) and table.dim() == 2 and table.shape[1] != a.head_dim:
            raise ValueError(f"TransformerBlock: `table` is for heads of {table.shape[-1]}, these have {a.head_dim}; make it by "
                             f"rope_table(positions, {a.head_dim})")
        shared = {"norm_weight": norm, "eps": self.eps}
        weights = (a.wq.weight, a.wk.weight, a.wv.weight)
        if self.qk_norm:
            q, k, v = C.linear_qknorm_rope(x, *weights, a.q_norm.weight, a.k_norm.weight, table, positions,
                                           head_eps=self.eps, **shared)
        else:
            q, k, v = C.linear_rope(x, *weights, table, positions, **shared)
        heads = lambda t: t.unflatten(-1, (-1, a.head_dim)).transpose(1, 2)  # noqa: E731
        y = self._attend(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2)
        f = self.feed_forward
        return C.attention_output_mlp(y, x, a.wo.weight, self.ffn_norm.weight, f.w1.weight, f.w3.weight, f.w2.weight,
                                      activation=self.activation, eps=self.eps, recompute=self.recompute)


def _causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class LinearCrossEntropyLoss(nn.Module):
    """`linear_cross_entropy` as a loss: loss(hidden, head.weight, target)."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x, weight, target):
        return C.linear_cross_entropy(x, weight, target, **self.options)
