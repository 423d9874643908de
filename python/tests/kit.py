"""Comparison with the same mathematics in double: the error may be at most twice that of torch in the same type."""

import torch


def error(value, reference):
    """Norm of the difference over the norm of the reference; NaN counts as infinite."""
    reference = reference.double()
    difference = (value.double() - reference).norm() / reference.norm().clamp_min(1e-300)
    return difference.item() if torch.isfinite(difference) else float("inf")


def agrees(value, plain, reference, what=""):
    """`value` is ours, `plain` is torch's in the same type, `reference` is torch's in double."""
    assert value.shape == reference.shape and value.dtype == plain.dtype, (what, value.shape, value.dtype)
    bound = 2 * error(plain, reference) + 4 * torch.finfo(torch.float32).eps
    assert error(value, reference) <= bound, f"{what}: error {error(value, reference):.2e}, bound {bound:.2e}"


def leaves(tensors, dtype=None):
    """Detached copies that require gradients where the originals are floats of that kind."""
    made = []
    for t in tensors:
        t = t.detach().clone() if dtype is None or not t.is_floating_point() else t.detach().to(dtype)
        made.append(t.requires_grad_(t.is_floating_point()))
    return made


def compare(ours, theirs, tensors, fixed=()):
    """Results and gradients of ours(*tensors, *fixed) against theirs in the same type and in double."""
    runs = []
    for function, dtype in ((ours, None), (theirs, None), (theirs, torch.float64)):
        inputs = leaves(tensors, dtype)
        others = [t.double() if dtype and t.is_floating_point() else t for t in fixed]
        outputs = function(*inputs, *others)
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        torch.manual_seed(1)
        arriving = [torch.randn(o.shape, device=o.device, dtype=torch.float32).to(o.dtype) for o in outputs]
        arriving = [a.to(tensors[0].dtype).to(o.dtype) for a, o in zip(arriving, outputs)]
        runs.append(outputs + list(torch.autograd.grad(outputs, inputs, arriving)))
    for i, (a, b, c) in enumerate(zip(*runs)):
        agrees(a, b, c, f"result {i}")
