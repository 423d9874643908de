"""AdamW as one program a parameter: each of gradient, weight and averages read once, the last three written once."""

import functools
import math
import struct

import torch

from .._device import Kernel
from .._library import DTYPES
from .._program import Module
from ._launch import CODA_DTYPE, OPERAND, device_key, device_of, error_address, fail, launch_functions
from ._operator import COMPUTE_DTYPES

# Computed in f32, each result rounded once. The outs are the memory of their ins. A square root and a quotient that round
# right would be half of the instructions: x rsqrt(x) and rsqrt(x)^2 = 1 / x are off by some 1e-7.
_TEXT = """
program adamw_step {
    in  gradient, w, m, v : bf16[M, N]
    param b1 = 0.9
    param a1 = 0.1
    param b2 = 0.999
    param a2 = 0.001
    param keep = 1
    param rate = 1e-3
    param scale = 1
    param eps = 1e-8
    average = b1 * m + a1 * gradient
    square = b2 * v + a2 * gradient * gradient
    out new_m : bf16[M, N] = average
    out new_v : bf16[M, N] = square
    root = square * rsqrt(square + 1e-37)
    r = rsqrt(root * scale + eps)
    out new_w : bf16[M, N] = keep * w - rate * average * r * r
}
"""


_OPERANDS, _NUMBERS = struct.Struct("@" + "P32s" * 7).pack, struct.Struct("@8d").pack


@functools.cache
def _kernel(key, dtype):
    module = Module.parse(_TEXT, "AdamW")
    program = (module if dtype is torch.bfloat16 else module.retype("bf16", CODA_DTYPE[dtype]))[0]
    return Kernel(device_of(key), program, {}, (0, 0), None, False)


def _launch(key, dtype, operands, numbers):
    stream = torch._C._cuda_getCurrentRawStream(key) if isinstance(key, int) else None
    status = launch_functions()[0](_kernel(key, dtype).handle, operands, 7, numbers, stream, error_address())
    if status:
        fail(status)


def _local(tensor):
    """What of a DTensor lies here."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW in one kernel a parameter, for dense parameters of bfloat16, float16 or float32 on CPUs and GPUs, and for
    the local shards of DTensors (`fully_shard`).

    The averages have the parameter's type and the names that torch gives them, so the two load each other's state_dict. `lr` and
    `weight_decay` are numbers; schedulers that change them work. There is no amsgrad, no maximize, and no capture in CUDA graphs,
    since the number of the step enters as a number.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        for what, value, good in (("lr", lr, lr >= 0), ("betas", betas, len(betas) == 2 and all(0 <= b < 1 for b in betas)), ("eps", eps, eps >= 0),
                                  ("weight_decay", weight_decay, weight_decay >= 0)):
            if not good:
                raise ValueError(f"AdamW: {what} is {value}; expected {'two numbers in [0, 1)' if what == 'betas' else '>= 0'}")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    def __setstate__(self, state):
        """Also what loads a state_dict."""
        super().__setstate__(state)
        for group in self.param_groups:
            for option, ours in (("amsgrad", False), ("maximize", False), ("decoupled_weight_decay", True)):
                if group.get(option, ours) is not ours:
                    raise ValueError(f"AdamW: the state is of an optimizer with {option}={group[option]}; here it is {ours}")

    @torch.no_grad()
    def step(self, closure=None):
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("AdamW: a CUDA graph would repeat this step's number; use torch.optim.AdamW(capturable=True) "
                               "there")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        given = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, _ in given:
            _check(p)
        for p, group in given:
            operands, numbers, _gradient = self._update(p, group)
            if _local(p).numel():
                _launch(device_key(_local(p)), p.dtype, operands, numbers)
            torch.autograd.graph.increment_version(p)
        return loss

    def _update(self, p, group):
        """Operands and numbers of a parameter's update, and its gradient."""
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.contiguous_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.contiguous_format)
        if state["step"].is_cuda:  # as torch's fused one saves it
            state["step"] = state["step"].cpu()
        state["step"] += 1
        step, (b1, b2), lr = state["step"].item(), group["betas"], float(group["lr"])
        for name in ("exp_avg", "exp_avg_sq"):  # a state that was loaded may be of a parameter that lay in another way
            if state[name].dtype is not p.dtype or not _local(state[name]).is_contiguous():
                state[name] = state[name].to(p.dtype).contiguous()
        gradient, layout = _local(p.grad).contiguous(), _layout(_local(p))
        g, w, m, v = (t.data_ptr() for t in (gradient, _local(p), _local(state["exp_avg"]), _local(state["exp_avg_sq"])))
        operands = _OPERANDS(*[x for place in (g, w, m, v, m, v, w) for x in (place, layout)])
        return operands, _NUMBERS(b1, 1 - b1, b2, 1 - b2, 1 - lr * group["weight_decay"], lr / (1 - b1**step),
                                  1 / math.sqrt(1 - b2**step), group["eps"]), gradient


def _layout(w):
    """The elements as rows and columns; of a vector more rows than one where it can be, since rows run side by side."""
    count, columns = w.numel(), w.shape[-1] if w.dim() > 1 else 16
    if not columns or count % columns:
        columns = count
    return OPERAND(DTYPES.index(CODA_DTYPE[w.dtype]), 2, count // max(1, columns), columns, columns)


def _check(p):
    if p.dtype not in COMPUTE_DTYPES:
        raise TypeError(f"AdamW: a parameter is {p.dtype}; coda computes in bfloat16, float16 and float32")
    if p.grad.layout is not torch.strided:
        raise RuntimeError(f"AdamW does not support sparse gradients; this one's layout is {p.grad.layout}")
    if p.grad.dtype is not p.dtype:
        raise TypeError(f"AdamW: the gradient of a {p.dtype} parameter is {p.grad.dtype}; expected {p.dtype}")
    if not _local(p).is_contiguous():
        raise ValueError(f"AdamW: a parameter of shape {list(p.shape)} has strides {list(_local(p).stride())}; expected a "
                         "contiguous one")
