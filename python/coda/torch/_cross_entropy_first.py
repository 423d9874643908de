"""The first chunk of rows where memory is short: the weight's gradient, not begun yet, holds most of its logits.

Its logits are blocks of columns, as wide as the memory of a chunk holds one of so many rows. All but the last lie where the
gradient of their part of the weight will be, which has at least as many bytes; each is moved into the chunk's memory before
its gradient takes its place.
"""

import functools
import math

import torch

from .._program import Module
from . import _cross_entropy_text as text_of
from ._launch import CODA_DTYPE
from ._sequence import Sequence

_BLOCKS = 4


@functools.lru_cache(None)
def _launches(dtype):
    programs = list(Module.parse(text_of.in_blocks(_BLOCKS).replace("bf16", CODA_DTYPE[dtype]), "linear_cross_entropy"))
    each = range(_BLOCKS)
    names = ["A", "C", "t", "w", "u", "ce", "zl", "s", "H", "dX", "dW", *(f"{n}{i}" for i in each for n in "WtSE")]
    operands = {}
    for o in (o for program in programs for o in program.operands if all(map(str.isidentifier, o.dims))):
        if o.name not in operands or o.role != "in":
            operands[o.name] = o
    run = Sequence("linear_cross_entropy", programs, [operands[n] for n in names], [], ["shift", "ignore", "z_loss"]).run
    return lambda key, given, *parameters: run(key, *(given[n] for n in names), *parameters)


def rows_of(memory, dx, weight) -> int:
    """How many rows it has; 0: none, since too little would be won."""
    (rows, k), widest = dx.shape, max(b - a for a, b in _blocks(weight.shape[0]))
    most = min(memory.numel() // widest, k, rows // 2) // 8 * 8
    return most if 4 * weight.shape[0] > _BLOCKS * 512 and 2 * -(-weight.shape[0] // 128) + 8 * _BLOCKS <= k and \
        2 * most * weight.shape[0] > 3 * memory.numel() else 0


def _blocks(v):
    ends = [v * i // _BLOCKS // 128 * 128 for i in range(_BLOCKS)] + [v]
    return list(zip(ends, ends[1:]))


def run(key, memory, rows, dx, dw, given, alone, parameters):
    """The first `rows` rows: their losses, dx, and dw. given: as the launches of a chunk take it; alone: the weight's gradient of one
    chunk, as a launch."""
    k, blocks = dx.shape[1], _blocks(given["W"].shape[0])
    own, h = dx[:rows].view(-1).view(torch.float32), dx[dx.shape[0] - rows:]
    e, sums = [], 0
    for i, (a, b) in enumerate(blocks):
        at = memory if i == len(blocks) - 1 else dw.view(-1)[a * k:]
        e.append(at[:rows * (b - a)].view(rows, b - a))
        runs = -(-(b - a) // 128)
        given.update({f"W{i}": given["W"][a:b], f"t{i}": given["t"] - a, f"E{i}": e[i],
                      f"S{i}": own[sums:sums + rows * runs].view(rows, runs)})
        sums += rows * runs
    given.update(H=h, dX=dx[:rows], dW=dw[blocks[-1][0]:])
    _launches(dx.dtype)(key, given, *parameters)
    for i, (a, b) in enumerate(blocks[:-1]):
        moved = memory[:rows * (b - a)].view(rows, b - a)
        moved.copy_(e[i])
        alone(key, moved, h, dw[a:b])
