"""Which kernels are made, and how."""

import threading

import torch

import coda.torch as C
from coda.torch._sequence import _compile


def test_kernels_that_nobody_launches_are_not_made(device):
    function = C.program(f"""
program doubled_{device.type} {{
    in  x : bf16[M, K]
    in  w : bf16[N, K]
    out y : bf16[M, N] = silu(x @ w.T) + silu(x @ w.T)
}}""")
    x, w = torch.randn(8, 16, device=device), torch.randn(24, 16, device=device).requires_grad_()
    variant = function._operator.variant("f32")
    made = lambda: (len(variant.plain.kernels), len(variant.keep.kernels))  # noqa: E731
    trained = function(x, w)
    assert made()[0] == 0 and made()[1] > 0
    with torch.no_grad():
        torch.testing.assert_close(function(x, w), trained)
    assert made()[0] > 0
    before = made()
    function(x, w).sum().backward()
    assert made() == before and w.grad is not None


def test_kernels_of_a_plan_are_compiled_side_by_side_on_a_gpu():
    class Kernels:
        """Ready only where the others are being made too."""

        together = threading.Barrier(3, timeout=60)

        def __init__(self):
            self.handles = {}

        def __call__(self, key, *sizes):
            Kernels.together.wait()
            self.handles[key, sizes] = 1

    wanted = [(Kernels(), sizes) for sizes in ((), (64,), (16, 32))]
    _compile(0, *wanted)
    assert all((0, sizes) in kernels.handles for kernels, sizes in wanted)
    _compile(0, *wanted)  # nothing is missing: nobody waits
    _compile("cpu", *wanted)  # a CPU's kernels are made where they are asked for
