"""The gradient of x where a chunk has so few rows that its tiles leave most of a GPU idle: the sum over the vocabulary in parts
that run side by side, each in f32, and where these lie."""

import functools

import torch

from .._program import Module
from ._cross_entropy_text import parts_of_input_gradient, parts_together
from ._launch import CODA_DTYPE
from ._order import MOST_SETS
from ._sequence import Sequence

_TILE_ROWS, _TILE_COLUMNS = 256, 256  # of two multiprocessors


def count(x, rows, vocabulary) -> int:
    """Into how many parts the vocabulary is cut; 1: tiles of so many rows fill more than half of the GPU."""
    if not x.is_cuda or x.dtype is torch.float32 or x.shape[1] % 8:
        return 1
    device = torch.cuda.get_device_properties(x.device)
    if device.major != 9:
        return 1
    tiles = -(-rows // _TILE_ROWS) * -(-x.shape[1] // _TILE_COLUMNS)
    return max(1, min(device.multi_processor_count // 2 // tiles, vocabulary // 1024, MOST_SETS))


@functools.lru_cache(None)
def launches(dtype, parts):
    """Takes the parts of the logits' gradient and of the weight in turns, then sums, factors and the gradient of x."""
    texts = parts_of_input_gradient(parts) + parts_together(parts)
    *products, last = Module.parse(texts.replace("bf16", CODA_DTYPE[dtype]), "linear_cross_entropy")
    arguments = [o for p in products for o in p.operands if o.role == "in"] + list(last.operands)
    return Sequence("linear_cross_entropy", [*products, last], arguments, [], []).run


@functools.lru_cache(None)
def together(dtype, parts):
    """The last of these launches: takes sums, factors and the gradient of x."""
    (program,) = Module.parse(parts_together(parts).replace("bf16", CODA_DTYPE[dtype]), "linear_cross_entropy")
    return Sequence("linear_cross_entropy", [program], program.operands, [], []).run


def cut(e, weight, parts):
    """Columns of e and rows of the weight, part by part; they begin at multiples of 64."""
    v = weight.shape[0]
    ends = [v * i // parts // 64 * 64 for i in range(parts)] + [v]
    for start, end in zip(ends, ends[1:]):
        yield from (e[:, start:end], weight[start:end])


def place(memory, dx, first, rows, vocabulary, parts):
    """Sums of `rows` rows from `first` on: (f32 [rows, K] a part, rows). They lie in the last rows of dx, which come later, as many
    as do, and behind the logits in the memory of a chunk, which then has fewer rows."""
    k = dx.shape[1]
    several = rows < dx.shape[0]
    later = min(parts, (dx.shape[0] - first - rows) // (2 * rows))
    fewer = min(rows, (memory.numel() - 8) // (vocabulary + 2 * (parts - later) * k)) if later < parts else rows
    if several and fewer > rows // 2:
        rows = fewer
    each = 2 * rows * k  # numbers of 16 bits
    sums = [dx[dx.shape[0] - 2 * rows * (i + 1):].view(-1)[:each] for i in range(later)]
    if several and rows * vocabulary + (parts - later) * each <= memory.numel() - 8:
        start = memory.numel() // 8 * 8
        sums += [memory[start - (i + 1) * each:start - i * each] for i in range(parts - later)]
    sums = [s.view(torch.float32).view(rows, k) for s in sums]
    return sums + [dx.new_empty(rows, k, dtype=torch.float32) for _ in range(parts - len(sums))], rows
