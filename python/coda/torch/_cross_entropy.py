"""Linear layer and cross-entropy, a chunk of rows at a time: the logits of the whole batch never exist."""

import functools
import math

import torch

from .._program import Module, standard_module
from ._cross_entropy_text import BY_EXPONENTIALS, GRADIENTS, by_pass
from ._launch import CODA_DTYPE, device_key
from ._operator import LIBRARY, Underived, refuse_unserved_modes
from ._sequence import Sequence


class _Head:
    """The launches of one type and set of options: each takes the memory of its outs."""

    def __init__(self, dtype, cap, smooth):
        own = Module.parse((by_pass(cap, smooth) + GRADIENTS).replace("bf16", dtype), "linear_cross_entropy")
        for program in own:
            setattr(self, program.name, _run([program], program.operands, program.parameters))
        dgrad = standard_module() if dtype == "bf16" else standard_module().retype("bf16", dtype)
        program = dgrad["gemm_dgrad"]
        self.dgrad = _run([program], program.operands, program.parameters)


class _Exponentials:
    """The launches that need no pass over the logits, of one type."""

    ARGUMENTS = {"A": "exponentials", "W": "exponentials", "C": "finish", "t": "finish", "S": "runs",
                 "P": "finish", "w": "finish", "u": "finish", "ce": "finish", "zl": "finish", "s": "finish", "E": "finish"}

    def __init__(self, dtype):
        own = Module.parse(BY_EXPONENTIALS.replace("bf16", dtype), "linear_cross_entropy")
        guess, *forward, scaled, input_gradient, both = own
        arguments = [next(o for o in own[program].operands if o.name == name) for name, program in self.ARGUMENTS.items()]
        self.guess = _run([guess], guess.operands, [])
        self.forward = _run(forward, arguments, ["shift", "ignore", "z_loss"])
        self.scaled_rows = _run([scaled], scaled.operands, [])
        self.input_gradient = _run([input_gradient], input_gradient.operands, [])
        self.input_gradient_and_scaled_rows = _run([both], both.operands, [])


def _run(programs, arguments, parameters):
    return Sequence("linear_cross_entropy", programs, arguments, [], parameters).run


@functools.lru_cache(None)
def _head_of(dtype, cap, smooth):
    return _Head(CODA_DTYPE[dtype], cap, smooth)


@functools.lru_cache(None)
def _exponentials_of(dtype):
    return _Exponentials(CODA_DTYPE[dtype])


def chunk_rows(rows: int, width: int) -> int:
    """Rows of a chunk: enough for full matrix products, and no more logits than twice the weight."""
    return min(rows, max(1024, -(-2 * width // 128) * 128))


class _Chunks:
    """One pass over the rows: losses, and gradients if row weights are given."""

    def __init__(self, x, weight, target, options, chunk):
        self.x, self.weight, self.target = x, weight, target
        self.ignore, self.smoothing, self.cap, self.z_loss = options
        self.head = _head_of(x.dtype, self.cap > 0, self.smoothing > 0)
        self.key, self.rows, self.vocabulary = device_key(x), x.shape[0], weight.shape[0]
        self.chunk = chunk or chunk_rows(self.rows, x.shape[1])
        # A chunk of so few rows that the tiles of its input's gradient fill less than a quarter of a GPU: the library's
        # product splits the sum over the vocabulary.
        self.few_tiles = x.is_cuda and x.dtype is not torch.float32 and \
            -(-min(self.chunk, self.rows) // 128) * -(-x.shape[1] // 256) * 4 < \
            torch.cuda.get_device_properties(x.device).multi_processor_count

        # exp(z - c) needs the exponents of bf16; what else goes with it than z loss would be another pass.
        self.by_exponentials = self.cap == 0 and self.smoothing == 0 and not self.few_tiles and \
            x.dtype is not torch.float16

    def run(self, w=None, u=None, dx=None, add=None):
        """Returns ce and zl of every row; fills dx, and calls add(logits' gradient, rows of x) for the weight's."""
        losses = self.row(self.rows), self.row(self.rows)
        if w is not None and self.by_exponentials:
            self._run_by_exponentials(w, u, dx, add, *losses)
        else:
            self._run_by_pass(w, u, dx, add, *losses)
        return losses

    def row(self, *shape):
        return self.x.new_empty(*shape, dtype=torch.float32)

    def _slices(self):
        for first in range(0, self.rows, self.chunk):
            yield slice(first, min(first + self.chunk, self.rows))

    def _run_by_pass(self, w, u, dx, add, ce, zl):
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
            if add is not None:
                add(z, a)

    def _run_by_exponentials(self, w, u, dx, add, ce, zl):
        x, head, key, row = self.x, _exponentials_of(self.x.dtype), self.key, self.row
        n, v, runs = min(self.chunk, self.rows), self.vocabulary, -(-self.vocabulary // 128)
        step = -(-v // 256)
        some = self.weight[::step]
        e, scaled = x.new_empty(n, v), None if add is None else x.new_empty(n, x.shape[1])
        sums, fewer, factor = row(n, runs), row(n, -(-runs // 128)), row(n)
        guessed = row(self.rows, -(-some.shape[0] // 128))
        head.guess(key, x, some, guessed)
        for rows in self._slices():
            k = rows.stop - rows.start
            a, z, s = x[rows], e[:k], factor[:k]
            head.forward(key, a, self.weight, guessed[rows], self.target[rows], sums[:k], fewer[:k], w[rows], u[rows],
                         ce[rows], zl[rows], s, z, math.log(v / some.shape[0]), self.ignore, self.z_loss)
            if dx is not None and add is not None:
                head.input_gradient_and_scaled_rows(key, z, self.weight, s, a, dx[rows], scaled[:k])
            elif dx is not None:
                head.input_gradient(key, z, self.weight, s, dx[rows])
            else:
                head.scaled_rows(key, a, s, scaled[:k])
            if add is not None:
                add(z, scaled[:k])

    def _input_gradient(self, dz, dx):
        """dz @ weight."""
        if not self.few_tiles:
            return self.head.dgrad(self.key, dz, self.weight, dx)
        matmul = torch.backends.cuda.matmul
        kind = f"allow_{'bf16' if dx.dtype is torch.bfloat16 else 'fp16'}_reduced_precision_reduction"
        before = getattr(matmul, kind)
        setattr(matmul, kind, False)  # partial sums stay f32
        torch.mm(dz, self.weight, out=dx)
        setattr(matmul, kind, before)

    def several(self):
        return self.chunk < self.rows


class _WeightGradient:
    """The weight's gradient, added up over chunks: without loss in f32, or in two words of a 16-bit type; in one word of it,
    which is rounded with every chunk, if not `exact`."""

    def __init__(self, chunks, exact, main_grad=None):
        self.head, self.key, weight = chunks.head, chunks.key, chunks.weight
        self.low, self.value, self.first = None, main_grad, main_grad is None
        if main_grad is None:
            self.value = torch.empty_like(weight, memory_format=torch.contiguous_format)
            if weight.dtype is torch.float32:
                self.value.zero_()
            elif chunks.several() and exact:
                self.low = torch.empty_like(self.value)

    def add(self, dz, a):
        head, key = self.head, self.key
        if self.value.dtype is torch.float32:
            head.weight_gradient_added(key, dz, a, self.value)
        elif self.low is None and self.first:
            head.weight_gradient(key, dz, a, self.value)
        elif self.low is None:
            head.weight_gradient_rounded(key, dz, a, self.value, self.value)
        elif self.first:
            head.weight_gradient_first(key, dz, a, self.value, self.low)
        else:
            head.weight_gradient_next(key, dz, a, self.value, self.low, self.value, self.low)
        self.first = False


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
    ce, zl = chunks.run(scale, scale, dx, dw and dw.add) if need_x or need_w else chunks.run()
    loss, zl = _reduce(ce, zl, scale, reduction)
    return loss, zl, none if dx is None else dx, none.clone() if dw is None else dw.value


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
    chunks.run(w.contiguous(), u.contiguous(), dx, dw and dw.add)
    if main_grad is not None and need_w:
        torch.autograd.graph.increment_version(main_grad)
    return none if dx is None else dx, none.clone() if dw is None or main_grad is not None else dw.value


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
