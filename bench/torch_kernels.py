"""Single launches of a layer and the head, coda's standard programs beside what others offer for the same mathematics: torch.compile,
Liger, quack's and the paper's fused products. `section_kernels` is a section of torch_suite.py.

Each peer makes a list of runs from the same tensors; a run's results are brought into one form outside the time that is taken, and
compared with the same in f32. "product" is the matrix product alone, by cuBLAS.
"""

import importlib

import torch
import torch.nn.functional as F

import coda
import torch_peers
from torch_peers import EPS, HEAD


class Run:
    """run() launches; common(its result) are tensors as the reference has them."""

    def __init__(self, run, common=lambda results: results):
        self.run, self.common = run, common


def inputs(normal, d, f, tokens, table):
    """Everything that the launches read, in the layouts of all peers."""
    t = {name: normal(*shape, scale=scale) for name, shape, scale in (
        ("y", (tokens, d), 1), ("x", (tokens, d), 1), ("wo", (d, d), d**-0.5), ("wg", (f, d), d**-0.5), ("wu", (f, d), d**-0.5),
        ("wd", (d, f), f**-0.5), ("wq", (d, d), d**-0.5), ("wk", (d, d), d**-0.5), ("wv", (d, d), d**-0.5),
        ("dx", (tokens, d), 1), ("dz", (tokens, 3 * d), 1), ("G", (tokens, f), 1), ("U", (tokens, f), 1))}
    t["g"] = 1 + normal(d, scale=0.1)
    x = t["x"].float()
    t["r"] = torch.rsqrt(x.square().mean(1) + EPS)
    t["h"] = t["x"] * t["g"]
    t["S"] = x.square().view(tokens, -1, 128).sum(-1)
    t["normed"] = (x * t["r"][:, None] * t["g"]).to(t["x"].dtype)
    t["table"], t["position"] = table, torch.arange(tokens // 2, device=x.device, dtype=torch.int32).repeat(2)
    t["c"] = torch.randn(tokens, 3 * d // 128, device=x.device)
    t["w_qkv"] = torch.cat([t["wq"], t["wk"], t["wv"]])
    return t


# ---------------------------------------------------------------- the mathematics, in any type

def residual_norm(t):
    x = F.linear(t["y"], t["wo"]) + t["x"]
    return x, F.rms_norm(x, x.shape[-1:], t["g"], EPS)


def swiglu(t):
    gate, up = F.linear(t["normed"], t["wg"]), F.linear(t["normed"], t["wu"])
    return gate, up, F.silu(gate) * up


def rope(t):
    cos, sin = (p.repeat(1, 2)[:, None].to(t["x"].dtype) for p in t["table"][t["position"].long()].chunk(2, -1))
    q, k, v = F.linear(t["normed"], t["w_qkv"]).chunk(3, -1)
    turned = [torch_peers.rotate(z.unflatten(-1, (-1, HEAD)), cos, sin).flatten(1) for z in (q, k)]
    return (torch.cat([*turned, v], -1),)


def swiglu_backward(t):
    d, gate, up = (t["dx"] @ t["wd"]).float(), t["G"].float(), t["U"].float()
    s = torch.sigmoid(gate)
    z, dtype = gate * s, t["x"].dtype
    return (d * up * (s + z * (1 - s))).to(dtype), (d * z).to(dtype), (z * up).to(dtype)


def norm_backward(t):
    d, xn, dtype = (t["dz"] @ t["w_qkv"]).float(), t["x"].float() * t["r"][:, None], t["x"].dtype
    sums = t["c"].sum(1, keepdim=True) / d.shape[1]
    dx = t["dx"].float() + (d * t["g"].float() - xn * sums) * t["r"][:, None]
    return dx.to(dtype), (xn * t["g"].float()).to(dtype), (d * xn).sum(0)


MATHEMATICS = {"product, residual, norm": residual_norm, "norm, gate and up, SwiGLU": swiglu, "norm, query, key, value, RoPE": rope,
               "gradient through down and SwiGLU": swiglu_backward, "gradient through query, key, value and the norm": norm_backward}


def product(t):
    names = {"product, residual, norm": ("y", "wo"), "norm, query, key, value, RoPE": ("normed", "w_qkv")}
    runs = {kind: Run(lambda a=t[a], w=t[w]: a @ w.T, None) for kind, (a, w) in names.items()}
    gate_up = torch.cat([t["wg"], t["wu"]])
    runs["norm, gate and up, SwiGLU"] = Run(lambda: t["normed"] @ gate_up.T, None)
    runs["gradient through down and SwiGLU"] = Run(lambda: t["dx"] @ t["wd"], None)
    runs["gradient through query, key, value and the norm"] = Run(lambda: t["dz"] @ t["w_qkv"], None)
    return runs


def compiled(t):
    return {kind: Run(lambda f=torch.compile(f, dynamic=False): f(t)) for kind, f in MATHEMATICS.items()}


# ---------------------------------------------------------------- ours

def ours(t):
    on_gpu = t["x"].is_cuda
    device, stream = coda.Device("cuda" if on_gpu else "cpu"), torch.cuda.current_stream().cuda_stream if on_gpu else None
    tokens, d = t["x"].shape

    def view(tensor):
        return coda.Tensor(tensor.view(torch.int16), "bf16") if tensor.dtype == torch.bfloat16 else coda.Tensor(tensor)

    def program(name, results, common, dims=None, **given):
        """`results`: shapes and types of what it writes."""
        kernel = device.kernel(coda.standard_module()[name], dims or {})
        made = {k: torch.empty(shape, device=t["x"].device, dtype=dtype) for k, (shape, dtype) in results.items()}
        arguments = {k: view(v) for k, v in {**given, **made}.items()}
        parameters = {"eps": EPS} if "eps" in kernel.program.parameters else {}

        def run():
            kernel(**arguments, **parameters, stream=stream)
            return made
        return Run(run, common)
    b, s, f = torch.bfloat16, torch.float32, t["wg"].shape[0]

    def finished(m):
        r = torch.rsqrt(m["S"].sum(1, keepdim=True) / d + EPS)
        return m["X"], m["H"].float() * r
    return {
        "product, residual, norm": program(
            "gemm_residual_rms", {"X": ((tokens, d), b), "S": ((tokens, d // 128), s), "H": ((tokens, d), b)}, finished,
            A=t["y"], W=t["wo"], C=t["x"], g=t["g"]),
        "norm, gate and up, SwiGLU": program(
            "gemm_rms_swiglu", {"G": ((tokens, f), b), "U": ((tokens, f), b), "R": ((tokens,), s), "Y": ((tokens, f), b)},
            lambda m: (m["G"], m["U"], m["Y"]), H=t["h"], Wg=t["wg"], Wu=t["wu"], S=t["S"]),
        "norm, query, key, value, RoPE": program(
            "gemm_rms_rope", {"Y": ((tokens, 3 * d), b), "R": ((tokens,), s)}, lambda m: (m["Y"],), {"Q": d, "E": d, "D": HEAD},
            H=t["h"], Wq=t["wq"], Wk=t["wk"], Wv=t["wv"], S=t["S"], table=t["table"], pos=t["position"]),
        "gradient through down and SwiGLU": program(
            "gemm_swiglu_bwd", {"dG": ((tokens, f), b), "dU": ((tokens, f), b), "c": ((tokens, f // 128), s), "Y": ((tokens, f), b)},
            lambda m: (m["dG"], m["dU"], m["Y"]), dX=t["dx"], W=t["wd"], G=t["G"], U=t["U"]),
        "gradient through query, key, value and the norm": program(
            "gemm_rms_bwd", {"dX": ((tokens, d), b), "H": ((tokens, d), b), "dg": ((tokens // 64, d), s)},
            lambda m: (m["dX"], m["H"], m["dg"].sum(0)), dZ=t["dz"], W=t["w_qkv"], X=t["x"], g=t["g"], R=t["r"], c=t["c"],
            dR=t["dx"])}


# ---------------------------------------------------------------- others

def liger(t):
    functional = importlib.import_module("liger_kernel.transformers.functional")
    cos, sin = (p.repeat(1, 2)[None].to(t["x"].dtype) for p in t["table"][t["position"].long()].chunk(2, -1))

    def residual():
        h, x = functional.liger_fused_add_rms_norm(F.linear(t["y"], t["wo"]), t["x"], t["g"], EPS, in_place=False)
        return x, h

    def gated():
        gate, up = F.linear(t["normed"], t["wg"]), F.linear(t["normed"], t["wu"])
        return gate, up, functional.liger_swiglu(gate, up)

    def rotated():
        q, k, v = (F.linear(t["normed"], t[w]) for w in ("wq", "wk", "wv"))
        heads = lambda z: z.view(1, z.shape[0], -1, HEAD).transpose(1, 2)  # noqa: E731
        return (*functional.liger_rope(heads(q), heads(k), cos, sin), v)
    return {"product, residual, norm": Run(residual), "norm, gate and up, SwiGLU": Run(gated),
            "norm, query, key, value, RoPE": Run(rotated, lambda m: (torch.cat(
                [z[0].transpose(0, 1).flatten(1) for z in m[:2]] + [m[2]], -1),))}


def apart(pairs):
    """Gate and up, or their gradients, of columns that lie side by side."""
    return pairs.unflatten(-1, (-1, 2)).unbind(-1)


def quack(t):
    interface = importlib.import_module("quack.gemm_interface")
    torch_peers.few_tiles(interface)
    gate_up = torch.stack([t["wg"], t["wu"]], 1).flatten(0, 1)
    before, kept = torch.stack([t["G"], t["U"]], -1).flatten(1), torch.empty_like(t["x"])
    return {
        "product, residual, norm": Run(
            lambda: interface.gemm_rms(t["y"], t["wo"].mT, C=t["x"], norm_weight=t["g"], premult_out=kept, eps=EPS),
            lambda m: (kept, m[0].float() * m[1][:, None])),
        "norm, gate and up, SwiGLU": Run(
            lambda: interface.gemm_norm_gated(t["h"], gate_up.mT, t["r"], activation="swiglu", store_preact=True),
            lambda m: (*apart(m[0]), m[1])),
        "gradient through down and SwiGLU": Run(
            lambda: interface.gemm_dgated(t["dx"], t["wd"], before, activation="swiglu"), lambda m: (*apart(m[0]), m[1]))}


def paper(t):
    torch_peers.paper_modules()
    product = importlib.import_module("coda.core.gemm.functional")
    gate_up = torch.stack([t["wg"], t["wu"]], 1).flatten(0, 1)
    before, arrived = torch.stack([t["G"], t["U"]], -1).flatten(1), t["dx"].clone()
    frequency, mixed = torch_peers.paper_rotation(t["x"].shape[1], 500000.0, t["x"].device), torch_peers.paper_rows(
        t["wq"], t["wk"], t["wv"])
    sums = t["c"].sum(1) / t["x"].shape[1]

    def gradient():  # adds in place: the first run is checked, the others go on from there
        return product.gemm_residual_partial_rmsnorm_bwd(A=t["dz"], B=t["w_qkv"].mT, W=t["g"], pre=t["x"], ZdZ=sums, rstd=t["r"],
                                                         dX=arrived)

    def straight(m):
        q, k, v = m.chunk(3, -1)
        q, k = (z.unflatten(-1, (-1, HEAD // 2, 2)).transpose(-1, -2).flatten(1) for z in (q, k))
        return (torch.cat([q, k, v], -1),)
    return {
        "product, residual, norm": Run(
            lambda: product.gemm_residual_partial_rmsnorm(A=t["y"], B=t["wo"].mT, C=t["x"], W=t["g"], eps=EPS),
            lambda m: (m[0], m[1].float() * m[2][:, None])),
        "norm, gate and up, SwiGLU": Run(lambda: product.gemm_rmsnorm_swiglu(A=t["h"], B=gate_up.mT, rstd=t["r"]),
                                         lambda m: (*apart(m[0]), m[1])),
        "norm, query, key, value, RoPE": Run(
            lambda: product.gemm_rmsnorm_rope(A=t["h"], B=mixed.mT, rstd=t["r"], positions=t["position"], frequencies=frequency),
            straight),
        "gradient through down and SwiGLU": Run(
            lambda: product.gemm_swiglu_bwd_zdz(A=t["dx"], B=t["wd"].mT, Z=before, scale=1 / t["x"].shape[1]),
            lambda m: (*apart(m[0]), m[2] if m[1].dim() == 1 else m[1])),
        "gradient through query, key, value and the norm": Run(gradient, lambda m: (m[0], m[2], m[1]))}


PEERS = {"product": product, "compile": compiled, "liger": liger, "quack": quack, "paper": paper, "coda": ours}


# ---------------------------------------------------------------- measuring

def error_of(run, wanted):
    got = run.common(run.run())
    return max(((g.float() - w).norm() / w.norm()).item() for g, w in zip(got, wanted, strict=True))


@torch.no_grad()
def section_kernels(bench, widths, rope_table):
    for d, f in widths:
        t = inputs(bench.normal, d, f, bench.options.tokens, rope_table)
        single = {k: v.float() if v.is_floating_point() else v for k, v in t.items()}
        single["normed"] = single["x"] * t["r"][:, None] * single["g"]
        made = {}
        for name, peer in PEERS.items():
            if name not in bench.options.without:
                try:
                    made[name] = peer(t)
                except Exception as problem:
                    print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}")
        for kind, mathematics in MATHEMATICS.items():
            wanted, runs, errors = mathematics(single), {}, {}
            for name, peer in made.items():
                try:
                    if kind in peer:
                        errors[name] = error_of(peer[kind], wanted) if peer[kind].common else float("nan")
                        runs[name] = peer[kind].run
                except Exception as problem:
                    bench.report(section=kind, peer=name, failed=f"{type(problem).__name__}: {problem}"[:300], width=d)
            del wanted
            for name, ms in bench.interleaved(runs).items():
                bench.report(section=kind, peer=name, forward_ms=ms, error=errors[name], width=d)
        del t, single, made
        torch.cuda.empty_cache()
