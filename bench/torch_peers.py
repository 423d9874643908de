"""What a PyTorch user would take instead of coda.torch: each peer as functions on the same tensors.

Liger, quack, CCE and the paper's kernels are called where they are installed; a missing one raises ImportError, which the caller
reports. `CODA_PAPER` names a checkout of the paper's repository (its package is called coda too: it is imported under its own
name, and set aside).
"""

import dataclasses
import functools
import importlib
import importlib.util
import math
import os
import sys
import types
import typing

import torch
import torch.nn.functional as F

EPS, HEAD = 1e-6, 128


@dataclasses.dataclass
class Peer:
    """run(*inputs, *extra) on the common inputs, or on what the three functions make of them, outside the time that is taken:

    enter(inputs)      the peer's own leaves
    arrive(gradients)  gradients of the common results, as gradients of the peer's results
    leave(results, gradients)   the peer's results and gradients as the common ones
    """

    run: typing.Callable
    extra: tuple = ()
    enter: typing.Callable = lambda inputs: inputs
    arrive: typing.Callable = lambda gradients: gradients
    leave: typing.Callable = lambda results, gradients: (results, gradients)


def leaf(t):
    return t.detach().clone().requires_grad_()


# ---------------------------------------------------------------- eager

def norm(x, g):
    return F.rms_norm(x, g.shape, g, EPS)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def heads(t):
    return t.unflatten(-1, (-1, HEAD)).transpose(1, 2)


def eager_qkv(x, g, wq, wk, wv, cos, sin):
    h = norm(x, g)
    q, k, v = (heads(F.linear(h, w)) for w in (wq, wk, wv))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def eager_mlp(y, x, wo, g, wg, wu, wd):
    x = F.linear(y, wo) + x
    h = norm(x, g)
    return F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd) + x


def layer_of(mlp, qkv):
    def layer(y, x, wo, g0, wg, wu, wd, g1, wq, wk, wv, *tables):
        x = mlp(y, x, wo, g0, wg, wu, wd)
        return x, *qkv(x, g1, wq, wk, wv, *tables)
    return layer


eager_layer = layer_of(eager_mlp, eager_qkv)


# ---------------------------------------------------------------- Liger

def liger():
    functional = importlib.import_module("liger_kernel.transformers.functional")

    def qkv(x, g, wq, wk, wv, cos, sin):
        h = functional.liger_rms_norm(x, g, EPS, in_place=False)
        q, k, v = (heads(F.linear(h, w)) for w in (wq, wk, wv))
        q, k = functional.liger_rope(q, k, cos, sin)
        return q, k, v

    def mlp(y, x, wo, g, wg, wu, wd):
        h, x = functional.liger_fused_add_rms_norm(F.linear(y, wo), x, g, EPS, in_place=False)
        return F.linear(functional.liger_swiglu(F.linear(h, wg), F.linear(h, wu)), wd) + x
    return {"qkv": Peer(qkv), "mlp": Peer(mlp), "layer": Peer(layer_of(mlp, qkv)),
            "head": Peer(functional.liger_fused_linear_cross_entropy)}


# ---------------------------------------------------------------- Cut Cross-Entropy

def cce():
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    return {"head": Peer(lambda x, w, t: function(x, w, t.long()))}


# ---------------------------------------------------------------- quack

# quack's tuner tries 22 tiles and clusters for each product, and the paper's 76 choices; these four, or with `every_tile` all
# that are scheduled statically: 22. Its 250 runs of a choice are 75 here.
TILES = {(128, 256, False), (256, 128, False), (256, 192, False), (128, 192, True)}
every_tile = False


def few_tiles(module):
    """Leaves the tuned functions of a module the choices above."""
    tuner = importlib.import_module("quack.autotuner")
    runs = tuner._bench_cuda_graph_l2_rotate
    if not isinstance(runs, functools.partial):
        tuner._bench_cuda_graph_l2_rotate = functools.partial(runs, warmup_target_ms=100.0, n_timed_calls=24)

    def wanted(choice):
        c = choice.kwargs.get("config")
        if not hasattr(c, "tile_m"):
            return True
        if c.device_capacity != 9 or c.swap_ab or c.is_dynamic_persistent or c.cluster_m * c.cluster_n != 2:
            return False
        return every_tile or ((c.tile_m, c.tile_n, c.pingpong) in TILES and c.cluster_m == 2)
    for made in vars(module).values():
        if isinstance(made, tuner.Autotuner):
            made.configs = [c for c in made.configs if wanted(c)] or made.configs[:1]


def quack():
    """gemm_gated forward, gemm_dgated backward, its products, its RMSNorm with the residual, its chunked cross-entropy."""
    few_tiles(importlib.import_module("quack.gemm_interface"))
    rmsnorm = importlib.import_module("quack.rmsnorm").rmsnorm
    mlp_func = importlib.import_module("quack.mlp").mlp_func
    cross_entropy = importlib.import_module("quack.linear_cross_entropy").chunked_linear_cross_entropy

    def qkv(x, g, wq, wk, wv, cos, sin):
        h = rmsnorm(x, g, eps=EPS)
        q, k, v = (heads(F.linear(h, w)) for w in (wq, wk, wv))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def mlp(y, x, wo, g, w_gate_up, wd):
        h, x = rmsnorm(F.linear(y, wo), g, residual=x, eps=EPS, prenorm=True)
        return mlp_func(h, w_gate_up, wd, "swiglu", concat_layout=True) + x

    def layer(y, x, wo, g0, w_gate_up, wd, g1, wq, wk, wv, cos, sin):
        x = mlp(y, x, wo, g0, w_gate_up, wd)
        return x, *qkv(x, g1, wq, wk, wv, cos, sin)

    def enter(inputs):
        y, x, wo, g, wg, wu, *rest = inputs
        return [y, x, wo, g, leaf(torch.cat([wg, wu])), *rest]

    def leave(results, gradients):
        dy, dx, dwo, dg, dw, *rest = gradients
        return results, [dy, dx, dwo, dg, *dw.chunk(2), *rest]
    return {"qkv": Peer(qkv), "mlp": Peer(mlp, enter=enter, leave=leave), "layer": Peer(layer, enter=enter, leave=leave),
            "head": Peer(lambda x, w, t: cross_entropy(x, w, t))}


# ---------------------------------------------------------------- the paper's kernels

def paper_modules():
    """The paper's functions. Its package is called coda too, but none of its subpackages has the name of one of ours: they are
    found beside ours."""
    path = os.environ.get("CODA_PAPER")
    if not path or not os.path.isdir(os.path.join(path, "coda", "kernels")):
        raise ImportError("CODA_PAPER names no checkout of the paper's repository")
    package = importlib.import_module("coda")
    package.__path__.append(os.path.join(path, "coda"))
    if "fla" not in sys.modules and importlib.util.find_spec("fla") is None:  # of which it takes three decorators
        utils = types.ModuleType("fla.utils")
        utils.input_guard = lambda f: f
        utils.autocast_custom_fwd = torch.amp.custom_fwd(device_type="cuda")
        utils.autocast_custom_bwd = torch.amp.custom_bwd(device_type="cuda")
        sys.modules.update({"fla": types.ModuleType("fla"), "fla.utils": utils})
    if "ipdb" not in sys.modules and importlib.util.find_spec("ipdb") is None:  # a debugger, which it imports but does not call
        sys.modules["ipdb"] = types.ModuleType("ipdb")
    elementwise = importlib.import_module("coda.core.elementwise.functional")
    loss = elementwise.cross_entropy_fwd_bwd_  # called with a buffer for sums that this revision of it does not know: None here
    elementwise.cross_entropy_fwd_bwd_ = lambda partials, **rest: loss(**rest) if partials is None else loss(partials, **rest)
    if not hasattr(elementwise, "rope_bwd_zdz"):  # its layer asks for it, but no public revision has it
        elementwise.rope_bwd_zdz = rotated_back(torch.compile(angles, dynamic=False), torch.compile(turned_back, dynamic=False))
    block = importlib.import_module("coda.kernels.blocks.llama3").block
    head = importlib.import_module("coda.kernels.functional.cross_entropy").linear_cross_entropy
    # quack's workers do not import these sources: what they compile is kept under another fingerprint, and not found here.
    importlib.import_module("quack.cache.async_compile").get_active_pool = lambda: None
    for name in ("coda.core.gemm.functional", "coda.core.elementwise.functional", "quack.gemm_interface"):
        few_tiles(sys.modules[name])
    return block, head


def angles(pos, freq):
    """Cosines and sines of a head's pairs of columns, which all heads share."""
    turns = pos[:, None] * freq[None, :HEAD:2] + pos[:, None] * freq[None, 1:HEAD:2]
    angle = (turns - turns.round()) * (2 * math.pi)
    return angle.cos(), angle.sin()


def turned_back(y, dy, cos, sin, scale):
    """The gradient of the paper's rotation of queries and keys, and the sums of y * dy over rows."""
    turned, values = dy.split([dy.shape[1] // 3 * 2, dy.shape[1] // 3], 1)
    a, b = turned.unflatten(1, (-1, HEAD // 2, 2)).float().unbind(-1)
    c, s = cos[:, None], sin[:, None]
    turned = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(1).to(dy.dtype)
    return torch.cat([turned, values], 1), (y.float() * dy.float()).sum(1) * scale


def rotated_back(compiled_angles, compiled_turn):
    """Two functions, so that no angle's cosine is computed once a head."""
    return lambda y, dy, pos, freq, scale: compiled_turn(y, dy, *compiled_angles(pos, freq), scale)


def paper_rows(wq, wk, wv):
    """Query's, key's and value's weights as one matrix: what is rotated together lies side by side."""
    mixed = [w.view(-1, 2, HEAD // 2, w.shape[1]).transpose(1, 2).reshape(w.shape) for w in (wq, wk)]
    return torch.cat([*mixed, wv])


def paper_rotation(width, theta, device):
    """Turns a position, against the sense of ours, as the sum of two f32; none for the values."""
    turns = -(theta ** (-torch.arange(0, HEAD, 2, device=device, dtype=torch.float64) / HEAD)) / (2 * math.pi)
    high = turns.float()
    one = torch.stack([high, (turns - high.double()).float()], 1).flatten().repeat(width // HEAD)
    return torch.cat([one, one, torch.zeros_like(one)])


def paper():
    """Its layer with fused residual, norm, SwiGLU, RoPE; its linear cross-entropy. Rotations are of adjacent columns, gate and up
    interleaved: weights and gradients are permuted outside the time that is taken."""
    block, head = paper_modules()

    def columns(q, k, v):
        """Query, key and value [batch, heads, length, HEAD] as one matrix's columns."""
        mixed = [t.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) for t in (q, k)]
        return torch.cat([t.transpose(1, 2).flatten(2) for t in (*mixed, v)], -1)

    def enter(inputs):
        y, x, wo, g0, wg, wu, wd, g1, wq, wk, wv = inputs
        return [x, y, wo, leaf(torch.stack([wg, wu], 1).flatten(0, 1)), wd, leaf(paper_rows(wq, wk, wv)), g0, g1]

    def arrive(gradients):
        return [gradients[0], columns(*gradients[1:])]

    def leave(results, gradients):
        x, qkv = results
        q, k, v = (heads(t) for t in qkv.chunk(3, -1))
        q, k = (t.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for t in (q, k))
        dx, dy, dwo, dw1, dwd, dw3, dg0, dg1 = gradients
        dwg, dwu = dw1.unflatten(0, (-1, 2)).unbind(1)
        dwq, dwk, dwv = dw3.chunk(3)
        dwq, dwk = (w.view(-1, HEAD // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape) for w in (dwq, dwk))
        return [x, q, k, v], [dy, dx, dwo, dg0, dwg, dwu, dwd, dg1, dwq, dwk, dwv]

    def run(x, y, wo, w1, wd, w3, g0, g1, positions, frequencies):
        return block(x, y, wo, w1, wd, w3, g0, g1, positions, frequencies, EPS)

    def layer(width, batch, length, theta):
        positions = torch.arange(length, device="cuda", dtype=torch.int32).repeat(batch)
        return Peer(run, (positions, paper_rotation(width, theta, "cuda")), enter, arrive, leave)
    return {"layer": layer, "head": Peer(head)}
