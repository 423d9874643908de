"""Linear layer and cross-entropy, a chunk of rows at a time: the logits of the whole batch never exist."""

import functools

import torch

from .._program import Module, standard_module
from ._launch import CODA_DTYPE, Sequence, device_key
from ._operator import LIBRARY

TEXT = """
# Loss of every row from the statistics of gemm_lse; 0 for ignored rows.
program loss {
    in  L, Q : f32[M, R]
    in  T : f32[M]
    in  t : i32[M]
    param ignore = -100
    param smoothing = 0
    param share = 0                 # smoothing / V
    param z_loss = 0
    lse = logsumexp(L, R)
    out ce : f32[M] = where(t == ignore, 0, lse - (1 - smoothing) * T - share * sum(Q, R))
    out zl : f32[M] = where(t == ignore, 0, z_loss * lse * lse)
}
# Gradient of the logits, which takes their place: of w ce + u zl.
program gradient {
    in  Z : bf16[M, V]
    in  L : f32[M, V/128]
    in  t : i32[M]
    in  w, u : f32[M]
    param ignore = -100
    param smoothing = 0
    param z_loss = 0
    param cap = 0
    lse = logsumexp(L)
    live = where(t == ignore, 0, w)
    spread = where(t == ignore, 0, w + 2 * z_loss * lse * u)
    h = tanh(Z / cap)
    z = where(cap > 0, cap * h, Z)
    dz = exp(z - lse) * spread - ((1 - smoothing) * onehot(t, V) + smoothing / V) * live
    out dZ : bf16[M, V] = where(cap > 0, dz * (1 - h * h), dz)
}
program weight_gradient {
    in  dZ : bf16[M, V]
    in  A : bf16[M, K]
    out dW : bf16[V, K] = dZ.T @ A
}
program weight_gradient_added {
    in  dZ : bf16[M, V]
    in  A : bf16[M, K]
    out dW : f32[V, K] += dZ.T @ A
}
"""


class _Head:
    """The launches of one type: each takes the memory of its outs."""

    def __init__(self, dtype):
        retype = lambda module: module if dtype == "bf16" else module.retype("bf16", dtype)  # noqa: E731
        own, standard = retype(Module.parse(TEXT, "linear_cross_entropy")), retype(standard_module())
        self.logits = self._launch(standard["gemm_lse"])
        self.loss, self.gradient = self._launch(own["loss"]), self._launch(own["gradient"])
        self.dgrad = self._launch(standard["gemm_dgrad"])
        self.wgrad, self.wgrad_added = self._launch(own["weight_gradient"]), self._launch(own["weight_gradient_added"])

    @staticmethod
    def _launch(program):
        return Sequence("linear_cross_entropy", [program], program.operands, [], program.parameters).run


@functools.lru_cache(None)
def _head_of(dtype):
    return _Head(CODA_DTYPE[dtype])


def chunk_rows(rows: int, width: int) -> int:
    """Rows of a chunk: enough for full matrix products, and no more logits than twice the weight."""
    return min(rows, max(1024, -(-2 * width // 128) * 128))


class _Chunks:
    """One pass over the rows: losses, and gradients if row weights are given."""

    def __init__(self, x, weight, target, options, chunk):
        self.x, self.weight, self.target, self.options = x, weight, target, options
        self.head, self.key = _head_of(x.dtype), device_key(x)
        self.rows, self.width, self.vocabulary = x.shape[0], x.shape[1], weight.shape[0]
        self.chunk = chunk or chunk_rows(self.rows, self.width)

    def run(self, w=None, u=None, dx=None, dw=None):
        """Returns ce and zl of every row; adds to dw (f32) or fills it, fills dx."""
        ignore, smoothing, cap, z_loss = self.options
        x, head, key, empty = self.x, self.head, self.key, self.x.new_empty
        n, v, runs = min(self.chunk, self.rows), self.vocabulary, -(-self.vocabulary // 128)
        ce, zl = empty(self.rows, dtype=torch.float32), empty(self.rows, dtype=torch.float32)
        logits, lse, sums = empty(n, v), empty(n, runs, dtype=torch.float32), empty(n, runs, dtype=torch.float32)
        picked = empty(n, dtype=torch.float32)
        for first in range(0, self.rows, self.chunk):
            rows = slice(first, min(first + self.chunk, self.rows))
            k = rows.stop - first
            a, t, z, l, q, p = x[rows], self.target[rows], logits[:k], lse[:k], sums[:k], picked[:k]
            head.logits(key, a, self.weight, t, z, l, p, q, cap)
            head.loss(key, l, q, p, t, ce[rows], zl[rows], ignore, smoothing, smoothing / v, z_loss)
            if w is None:
                continue
            head.gradient(key, z, l, t, w[rows], u[rows], z, ignore, smoothing, z_loss, cap)
            if dx is not None:
                head.dgrad(key, z, self.weight, dx[rows])
            if dw is not None:
                (head.wgrad_added if dw.dtype is torch.float32 else head.wgrad)(key, z, a, dw)
        return ce, zl

    def weight_gradient(self):
        """Memory for the weight's gradient: in f32 where several chunks add up, else in its own type."""
        if self.chunk < self.rows or self.weight.dtype is torch.float32:
            return self.weight.new_zeros(self.weight.shape, dtype=torch.float32)
        return torch.empty_like(self.weight, memory_format=torch.contiguous_format)


# ---------------------------------------------------------------- operators

NONE, MEAN, SUM = range(3)


def _options(ignore, smoothing, cap, z_loss):
    return float(ignore), smoothing, cap, z_loss


def _row_scale(target, reduction, ignore):
    """What the reduction multiplies each row's loss by: a vector, so that nothing waits for a count."""
    if reduction == MEAN:
        return (1.0 / (target != ignore).sum(dtype=torch.float32)).expand(target.shape[0]).contiguous()
    return torch.ones(target.shape[0], dtype=torch.float32, device=target.device)


def _reduce(ce, zl, scale, reduction):
    if reduction == NONE:
        return ce, zl
    if reduction == SUM:
        return ce.sum(), zl.sum()
    # 0 live rows give 0 * inf = NaN, as torch's cross_entropy does
    return ce.sum() * scale[0], zl.sum() * scale[0]


def _dense(t):
    return t if t.stride(-1) == 1 and t.stride(0) >= t.shape[1] else t.contiguous()


def _forward(x, weight, target, reduction, ignore, smoothing, cap, z_loss, chunk, need_x, need_w):
    """Losses, and the gradients of their sum where asked: (loss, z, dx, dw); an empty tensor stands for none."""
    x, weight, target = _dense(x), _dense(weight), target.contiguous()
    scale = _row_scale(target, reduction, ignore)
    none = x.new_empty(0)
    if x.shape[0] == 0:
        zero = scale.new_empty(0)
        loss, zl = _reduce(zero, zero.clone(), scale.new_full((1,), float("inf")), reduction)
        return loss, zl, torch.zeros_like(x) if need_x else none, torch.zeros_like(weight) if need_w else none.clone()
    chunks = _Chunks(x, weight, target, _options(ignore, smoothing, cap, z_loss), chunk)
    dx = x.new_empty(x.shape) if need_x else None
    dw = chunks.weight_gradient() if need_w else None
    ce, zl = chunks.run(scale, scale, dx, dw) if need_x or need_w else chunks.run()
    loss, zl = _reduce(ce, zl, scale, reduction)
    return loss, zl, none if dx is None else dx, none.clone() if dw is None else dw


def _fake_forward(x, weight, target, reduction, ignore, smoothing, cap, z_loss, chunk, need_x, need_w):
    shape = (x.shape[0],) if reduction == NONE else ()
    f32 = lambda *s: x.new_empty(s, dtype=torch.float32)  # noqa: E731
    dw = x.new_empty(0)
    if need_w:
        several = (chunk or chunk_rows(x.shape[0], x.shape[1])) < x.shape[0] or weight.dtype is torch.float32
        dw = weight.new_empty(weight.shape, dtype=torch.float32 if several else weight.dtype)
    return f32(*shape), f32(*shape), x.new_empty(x.shape if need_x else 0), dw


def _backward(x, weight, target, w, u, main_grad, ignore, smoothing, cap, z_loss, chunk, need_x, need_w):
    """The pass again, now that every row's weight is known: (dx, dw)."""
    x, weight, target, none = _dense(x), _dense(weight), target.contiguous(), x.new_empty(0)
    if x.shape[0] == 0:
        return torch.zeros_like(x) if need_x else none, \
            torch.zeros_like(weight) if need_w and main_grad is None else none.clone()
    chunks = _Chunks(x, weight, target, _options(ignore, smoothing, cap, z_loss), chunk)
    dx = x.new_empty(x.shape) if need_x else None
    dw = None
    if need_w:
        dw = main_grad if main_grad is not None else chunks.weight_gradient()
    chunks.run(w.contiguous(), u.contiguous(), dx, dw)
    if main_grad is not None or dw is None:
        return none if dx is None else dx, none.clone()
    return none if dx is None else dx, dw if dw.dtype is weight.dtype else dw.to(weight.dtype)


def _fake_backward(x, weight, target, w, u, main_grad, ignore, smoothing, cap, z_loss, chunk, need_x, need_w):
    return (x.new_empty(x.shape if need_x else 0),
            weight.new_empty(weight.shape if need_w and main_grad is None else 0))


def _scaled(gradient, scale, dtype):
    out = torch.empty_like(gradient, dtype=dtype)
    return torch.mul(gradient, scale, out=out)


_NUMBERS = "int ignore_index, float smoothing, float cap, float z_loss, int chunk, bool need_x, bool need_w"
LIBRARY.define("linear_cross_entropy(Tensor x, Tensor weight, Tensor target, Tensor(a!)? main_grad, int reduction, "
               "int ignore_index, float smoothing, float cap, float z_loss, int chunk, bool recompute)"
               " -> (Tensor, Tensor)")
LIBRARY.define(f"linear_cross_entropy_forward(Tensor x, Tensor weight, Tensor target, int reduction, {_NUMBERS})"
               " -> (Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define("linear_cross_entropy_backward(Tensor x, Tensor weight, Tensor target, Tensor w, Tensor u, "
               f"Tensor(a!)? main_grad, {_NUMBERS}) -> (Tensor, Tensor)")
LIBRARY.define("scaled(Tensor gradient, Tensor scale, ScalarType dtype) -> Tensor")


def _impl(name, real, fake):
    LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coda::{name}", fake, lib=LIBRARY)


_impl("linear_cross_entropy_forward", _forward, _fake_forward)
_impl("linear_cross_entropy_backward", _backward, _fake_backward)
_impl("scaled", _scaled, lambda gradient, scale, dtype: torch.empty_like(gradient, dtype=dtype))
_impl("linear_cross_entropy",
      lambda x, w, t, m, reduction, i, s, c, z, chunk, r: _forward(x, w, t, reduction, i, s, c, z, chunk, False, False)[:2],
      lambda x, w, t, m, reduction, i, s, c, z, chunk, r: _fake_forward(x, w, t, reduction, i, s, c, z, chunk, False,
                                                                        False)[:2])
_ops = torch.ops.coda


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, target, main_grad, reduction, ignore, smoothing, cap, z_loss, chunk, recompute):
        need_x, need_w = ctx.needs_input_grad[:2]
        with torch._C._AutoDispatchBelowAutograd():
            now = not recompute
            loss, zl, dx, dw = _ops.linear_cross_entropy_forward(
                x, weight, target, reduction, ignore, smoothing, cap, z_loss, chunk, now and need_x, now and need_w)
        ctx.recompute, ctx.needs, ctx.main_grad, ctx.dtype = recompute, (need_x, need_w), main_grad, weight.dtype
        ctx.reduction, ctx.numbers = reduction, (ignore, smoothing, cap, z_loss, chunk)
        ctx.save_for_backward(*((x, weight, target) if recompute else (dx, dw)))
        if not recompute:
            ctx.mark_non_differentiable(zl)
        return loss, zl

    @staticmethod
    def backward(ctx, d_loss, d_zl):
        need_x, need_w = ctx.needs
        rest = (None,) * 9
        if not ctx.recompute:
            dx, dw = ctx.saved_tensors
            return (_ops.scaled(dx, d_loss, dx.dtype) if need_x else None,
                    _ops.scaled(dw, d_loss, ctx.dtype) if need_w else None, *rest)
        x, weight, target = ctx.saved_tensors
        w, u = d_loss, d_zl
        if ctx.reduction != NONE:
            scale = _row_scale(target, ctx.reduction, ctx.numbers[0])
            w, u = scale * d_loss, scale * d_zl
        dx, dw = _ops.linear_cross_entropy_backward(x, weight, target, w, u, ctx.main_grad, *ctx.numbers, need_x, need_w)
        return dx if need_x else None, dw if need_w and ctx.main_grad is None else None, *rest


def _autograd(*arguments):
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments[:2]):
        return _Function.apply(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return _ops.linear_cross_entropy(*arguments)


LIBRARY.impl("linear_cross_entropy", _autograd, "Autograd")
