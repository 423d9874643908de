"""Linear layer and cross-entropy, a chunk of rows at a time: the logits of the whole batch never exist."""

import functools
import math

import torch

from .._program import Module, standard_module
from . import _cross_entropy_parts as parts_of
from . import _cross_entropy_text as text_of
from ._launch import CODA_DTYPE, device_key
from ._operator import LIBRARY, Underived, refuse_unserved_modes
from ._sequence import Sequence


class _Head:
    """The launches of one type and set of options: each takes the memory of its outs."""

    def __init__(self, dtype, cap, smooth):
        texts = text_of.by_pass(cap, smooth) + text_of.GRADIENTS
        texts += "".join(map(text_of.weight_gradient, ("alone", "first", "added", "rounded")))
        for program in Module.parse(texts.replace("bf16", dtype), "linear_cross_entropy"):
            setattr(self, program.name, _run([program], program.operands, program.parameters))
        dgrad = standard_module() if dtype == "bf16" else standard_module().retype("bf16", dtype)
        program = dgrad["gemm_dgrad"]
        self.dgrad = _run([program], program.operands, program.parameters)


class _Exponentials:
    """The launches of a chunk that need no pass over the logits, as one list: with the gradient of x in so many parts (0: without),
    and with that of the weight if a kind is named. The parts are added up at the beginning of the next list (after), so that it
    may overlap the product there."""

    def __init__(self, dtype, parts, kind, after):
        texts = text_of.parts_together(parts, "Q", "r", "dY", "L") if after else ""
        texts += text_of.by_exponentials(dtype == "f32")
        if kind is not None and parts != 1:
            texts += text_of.SCALED_ROWS
        if parts == 1:
            texts += text_of.INPUT_GRADIENT if kind is None else text_of.INPUT_GRADIENT_AND_SCALED_ROWS
        if kind is not None:
            texts += text_of.weight_gradient(kind, "E", "H")
        if parts > 1:
            texts += text_of.parts_of_input_gradient(parts)
        programs = list(Module.parse(texts.replace("bf16", dtype), "linear_cross_entropy"))
        names = ["A", "W", "C", "t", "S", "P", "w", "u", "ce", "zl", "s", "E", *(["H", "dW"] if kind else []),
                 *(["dX"] if parts == 1 else [f"{n}{i}" for i in range(parts) for n in "EWP"]),
                 *(["r", "dY", *(f"Q{i}" for i in range(parts))] if after else [])]
        operands = {}
        for o in (o for program in programs for o in program.operands if all(map(str.isidentifier, o.dims))):
            if o.name not in operands or o.role != "in":
                operands[o.name] = o
        self._names = names
        self._run = _run(programs, [operands[n] for n in names], ["shift", "ignore", "z_loss"])

    def run(self, key, given, *parameters):
        self._run(key, *(given[n] for n in self._names), *parameters)


def _run(programs, arguments, parameters):
    return Sequence("linear_cross_entropy", programs, arguments, [], parameters).run


@functools.lru_cache(None)
def _head_of(dtype, cap, smooth):
    return _Head(CODA_DTYPE[dtype], cap, smooth)


@functools.lru_cache(None)
def _exponentials_of(dtype, *form):
    return _Exponentials(CODA_DTYPE[dtype], *form)


@functools.lru_cache(None)
def _guess_of(dtype):
    (program,) = Module.parse(text_of.GUESS.replace("bf16", CODA_DTYPE[dtype]), "linear_cross_entropy")
    return _run([program], program.operands, [])


def chunk_rows(rows: int, width: int) -> int:
    """Rows of a chunk: enough for full matrix products, and no more logits than twice the weight."""
    return min(rows, max(1024, -(-2 * width // 128) * 128))


def lean_rows(width: int) -> int:
    """A quarter of the width: tiles of 256 rows, but for a few rows' memory that vectors take."""
    return max(256, width // 4 // 256 * 256) - 4


class _Chunks:
    """One pass over the rows: losses, and gradients if row weights are given."""

    def __init__(self, x, weight, target, options, chunk):
        self.x, self.weight, self.target = x, weight, target
        self.ignore, self.smoothing, self.cap, self.z_loss = options
        self.head = _head_of(x.dtype, self.cap > 0, self.smoothing > 0)
        self.key, self.rows, self.vocabulary = device_key(x), x.shape[0], weight.shape[0]
        self.chunk = chunk or chunk_rows(self.rows, x.shape[1])
        self.parts = parts_of.count(x, min(self.chunk, self.rows), self.vocabulary)
        # exp(z - c) needs the exponents of bf16; what else goes with it than z loss would be another pass.
        self.by_exponentials = self.cap == 0 and self.smoothing == 0 and x.dtype is not torch.float16 and \
            self.vocabulary <= text_of.MOST_COLUMNS

    def run(self, w=None, u=None, dx=None, dw=None):
        """Returns ce and zl of every row; fills dx, and gives dw its sums."""
        losses = self.row(self.rows), self.row(self.rows)
        if w is not None and self.by_exponentials:
            self._run_by_exponentials(w, u, dx, dw, *losses)
        else:
            self._run_by_pass(w, u, dx, dw, *losses)
        return losses

    def row(self, *shape):
        return self.x.new_empty(*shape, dtype=torch.float32)

    def _slices(self):
        for first in range(0, self.rows, self.chunk):
            yield slice(first, min(first + self.chunk, self.rows))

    def _run_by_pass(self, w, u, dx, dw, ce, zl):
        x, head, key, row = self.x, self.head, self.key, self.row
        n, v, runs = min(self.chunk, self.rows), self.vocabulary, -(-self.vocabulary // 128)
        cap = (self.cap,) if self.cap else ()
        smooth = (self.smoothing, self.smoothing / v) if self.smoothing else ()
        logits = None if w is None else x.new_empty(n, v)
        sums = [row(n, runs) for _ in range(2 if smooth else 1)]  # over 128 columns: log-sum-exp, and plain where smoothed
        fewer = [row(n, -(-runs // 128)) for _ in sums]
        picked, lse = row(n), row(n)
        for rows in self._slices():
            k = rows.stop - rows.start
            a, t, p, l = x[rows], self.target[rows], picked[:k], lse[:k]
            q, r = [m[:k] for m in sums], [m[:k] for m in fewer]
            if w is None:
                head.statistics(key, a, self.weight, t, q[0], p, *q[1:], *cap)
            else:
                head.logits(key, a, self.weight, t, z := logits[:k], q[0], p, *q[1:], *cap)
            head.runs(key, *q, *r)
            head.loss(key, *r, p, t, l, ce[rows], zl[rows], self.ignore, *smooth, self.z_loss)
            if w is None:
                continue
            head.gradient(key, z, l, t, w[rows], u[rows], z, self.ignore, *smooth, self.z_loss, *cap)
            if dx is not None:
                self._input_gradient(z, dx[rows])
            if dw is not None:
                kind, total = dw.next()
                getattr(head, f"weight_gradient_{kind}")(key, z, a, total)

    def _run_by_exponentials(self, w, u, dx, dw, ce, zl):
        x, weight, key, row, parts = self.x, self.weight, self.key, self.row, 0 if dx is None else self.parts
        n, v, runs = min(self.chunk, self.rows), self.vocabulary, -(-self.vocabulary // 128)
        some = weight[::-(-v // 256)]
        guessed = row(self.rows, -(-some.shape[0] // 128))
        _guess_of(x.dtype)(key, x, some, guessed)
        memory, totals, factors = x.new_empty(n * v), row(n, 1), row(n)
        # Of few rows the gradient of x comes last, and its place holds their sums, then the rows with factors.
        sums = None if parts > 1 and 2 * runs <= x.shape[1] else row(n, runs)
        scaled = None if dw is None or parts > 1 else x.new_empty(n, x.shape[1])
        first, before = 0, None  # the sums, factors and gradient of x of the chunk before
        while first < self.rows:
            k, given = min(n, self.rows - first), {}
            if before is not None:
                given.update(zip((*(f"Q{i}" for i in range(parts)), "r", "dY"), before))
            if parts > 1:
                p, k = parts_of.place(memory, dx, first, k, v, parts)
                given.update((f"P{i}", t) for i, t in enumerate(p))
            rows = slice(first, first + k)
            e, own = memory[:k * v].view(k, v), None if dx is None else dx[rows]
            if parts > 1:
                given.update(zip((f"{n}{i}" for i in range(parts) for n in "EW"), parts_of.cut(e, weight, parts)))
            kind, given["dW"] = (None, None) if dw is None else dw.next()
            given.update(A=x[rows], W=weight, C=guessed[rows], t=self.target[rows], w=w[rows], u=u[rows], ce=ce[rows], zl=zl[rows],
                         E=e, P=totals[:k], s=factors[:k], dX=own, H=own if scaled is None else scaled[:k],
                         S=own.view(-1).view(torch.float32)[:k * runs].view(k, runs) if sums is None else sums[:k])
            launches = _exponentials_of(x.dtype, parts, kind, before is not None)
            launches.run(key, given, math.log(v / some.shape[0]), self.ignore, self.z_loss)
            first, before = first + k, (*p, factors[:k], own) if parts > 1 else None
        if before is not None:
            parts_of.together(x.dtype, parts)(key, *before)

    def _input_gradient(self, dz, dx):
        """dz @ weight."""
        if self.parts == 1:
            return self.head.dgrad(self.key, dz, self.weight, dx)
        sums, one = self.row(self.parts, *dx.shape), dx.new_ones(dx.shape[0], dtype=torch.float32)
        parts_of.launches(dx.dtype, self.parts)(self.key, *parts_of.cut(dz, self.weight, self.parts), *sums, one, dx)

    def several(self):
        return self.chunk < self.rows


class _WeightGradient:
    """The weight's gradient, added up over chunks in f32, or if not `exact` in its type, which rounds with every chunk."""

    def __init__(self, chunks, exact, main_grad=None):
        self.head, self.key, self.weight, self.sums = chunks.head, chunks.key, chunks.weight, main_grad
        self.in_f32 = main_grad is not None or (chunks.several() and exact) or self.weight.dtype is torch.float32

    def next(self):
        """What the next chunk's program does, and where to."""
        if self.sums is not None:
            return "added" if self.in_f32 else "rounded", self.sums
        self.sums = self.weight.new_empty(self.weight.shape, dtype=torch.float32 if self.in_f32 else None)
        return "first" if self.in_f32 else "alone", self.sums

    def finish(self):
        """The gradient, in the weight's type."""
        if self.sums.dtype is self.weight.dtype:
            return self.sums
        value = self.weight.new_empty(self.weight.shape)
        self.head.weight_gradient_of_sums(self.key, self.sums, value)
        return value


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


def _forward(x, weight, target, reduction, ignore, smoothing, cap, z_loss, chunk, exact, need_x, need_w):
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
    dw = _WeightGradient(chunks, exact) if need_w else None
    ce, zl = chunks.run(scale, scale, dx, dw) if need_x or need_w else chunks.run()
    loss, zl = _reduce(ce, zl, scale, reduction)
    return loss, zl, none if dx is None else dx, none.clone() if dw is None else dw.finish()


def _fake_forward(x, weight, target, reduction, ignore, smoothing, cap, z_loss, chunk, exact, need_x, need_w):
    shape = (x.shape[0],) if reduction == NONE else ()
    f32 = lambda *s: x.new_empty(s, dtype=torch.float32)  # noqa: E731
    return f32(*shape), f32(*shape), x.new_empty(x.shape if need_x else 0), weight.new_empty(weight.shape if need_w else 0)


def _backward(x, weight, target, w, u, main_grad, ignore, smoothing, cap, z_loss, chunk, exact, need_x, need_w):
    """The pass again, now that every row's weight is known: (dx, dw)."""
    x, weight, target, none = _dense(x), _dense(weight), target.contiguous(), x.new_empty(0)
    if x.shape[0] == 0:
        return torch.zeros_like(x) if need_x else none, \
            torch.zeros_like(weight) if need_w and main_grad is None else none.clone()
    chunks = _Chunks(x, weight, target, _options(ignore, smoothing, cap, z_loss), chunk)
    dx = x.new_empty(x.shape) if need_x else None
    dw = _WeightGradient(chunks, exact, main_grad) if need_w else None
    chunks.run(w.contiguous(), u.contiguous(), dx, dw)
    if main_grad is not None and need_w:
        torch.autograd.graph.increment_version(main_grad)
    return none if dx is None else dx, none.clone() if dw is None or main_grad is not None else dw.finish()


def _fake_backward(x, weight, target, w, u, main_grad, ignore, smoothing, cap, z_loss, chunk, exact, need_x, need_w):
    return (x.new_empty(x.shape if need_x else 0),
            weight.new_empty(weight.shape if need_w and main_grad is None else 0))


_NUMBERS = "int ignore_index, float smoothing, float cap, float z_loss, int chunk, bool exact, bool need_x, bool need_w"
LIBRARY.define("linear_cross_entropy(Tensor x, Tensor weight, Tensor target, Tensor(a!)? main_grad, int reduction, "
               "int ignore_index, float smoothing, float cap, float z_loss, int chunk, bool recompute, bool exact)"
               " -> (Tensor, Tensor)")
LIBRARY.define(f"linear_cross_entropy_forward(Tensor x, Tensor weight, Tensor target, int reduction, {_NUMBERS})"
               " -> (Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define("linear_cross_entropy_backward(Tensor x, Tensor weight, Tensor target, Tensor w, Tensor u, "
               f"Tensor(a!)? main_grad, {_NUMBERS}) -> (Tensor, Tensor)")


def _impl(name, real, fake):
    LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coda::{name}", fake, lib=LIBRARY)


_impl("linear_cross_entropy_forward", _forward, _fake_forward)
_impl("linear_cross_entropy_backward", _backward, _fake_backward)
_impl("linear_cross_entropy",
      lambda x, w, t, m, reduction, i, s, c, z, chunk, *_: _forward(x, w, t, reduction, i, s, c, z, chunk, True, False,
                                                                    False)[:2],
      lambda x, w, t, m, reduction, i, s, c, z, chunk, *_: _fake_forward(x, w, t, reduction, i, s, c, z, chunk, True, False,
                                                                         False)[:2])
_ops = torch.ops.coda
_graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: False)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, target, main_grad, reduction, ignore, smoothing, cap, z_loss, chunk, recompute, exact):
        need_x, need_w = ctx.needs_input_grad[:2]
        with torch._C._AutoDispatchBelowAutograd():
            now = not recompute
            loss, zl, dx, dw = _ops.linear_cross_entropy_forward(
                x, weight, target, reduction, ignore, smoothing, cap, z_loss, chunk, exact, now and need_x,
                now and need_w)
        ctx.recompute, ctx.needs, ctx.main_grad, ctx.spent = recompute, (need_x, need_w), main_grad, False
        ctx.reduction, ctx.numbers = reduction, (ignore, smoothing, cap, z_loss, chunk, exact)
        ctx.save_for_backward(*((x, weight, target) if recompute else (dx, dw)))
        if not recompute:
            ctx.mark_non_differentiable(zl)
        return loss, zl

    @staticmethod
    def backward(ctx, d_loss, d_zl):
        need_x, need_w = ctx.needs
        rest = (None,) * 10
        if not ctx.recompute:
            return (*_once(_scale(ctx, d_loss)), *rest)
        x, weight, target = ctx.saved_tensors
        w, u = d_loss, d_zl
        if ctx.reduction != NONE:
            scale = _row_scale(target, ctx.reduction, ctx.numbers[0])
            w, u = scale * d_loss, scale * d_zl
        with torch.no_grad():
            dx, dw = _ops.linear_cross_entropy_backward(x, weight, target, w, u, ctx.main_grad, *ctx.numbers, need_x, need_w)
        return (*_once((dx if need_x else None, dw if need_w and ctx.main_grad is None else None)), *rest)


def _once(gradients):
    """Gradients that refuse to be differentiated, where somebody may try (create_graph=True)."""
    if not torch.is_grad_enabled():
        return gradients
    made = iter(Underived.of("linear_cross_entropy", [g for g in gradients if g is not None]))
    return tuple(g if g is None else next(made) for g in gradients)


def _scale(ctx, d_loss):
    """The gradients that the forward made, times the one that arrives: in place, for the weight's is large, where nobody asked
    to keep them (retain_graph)."""
    if ctx.spent:
        raise RuntimeError("linear_cross_entropy: trying to backward through the graph a second time, whose gradients were given "
                           "away by the first. Specify retain_graph=True there")
    scaled, less_one = [], None
    for gradient, need in zip(ctx.saved_tensors, ctx.needs):
        if not need:
            scaled.append(None)
        elif torch.compiler.is_compiling() or type(gradient) is not torch.Tensor or torch._C._len_torch_dispatch_stack() or \
                _graph_is_kept():
            scaled.append((gradient * d_loss).to(gradient.dtype))
        else:
            less_one = d_loss - 1 if less_one is None else less_one
            _head_of(gradient.dtype, False, False).scaled(device_key(gradient), gradient, d_loss, less_one, gradient)
            scaled.append(gradient)
            ctx.spent = True
    return scaled


def _autograd(*arguments):
    recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments[:2])
    refuse_unserved_modes("linear_cross_entropy", arguments[:2], recorded)
    if recorded:
        return _Function.apply(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return _ops.linear_cross_entropy(*arguments)


LIBRARY.impl("linear_cross_entropy", _autograd, "Autograd")
