#!/usr/bin/env python3
"""Programs without a product on the GPU, in bytes a second, beside a copy of memory in the same run. One JSON line a row.

    python3 bench/cuda_passes.py --library build/libcoda.so [--width 2048,4096] [--tokens 16384] [--vocabulary 32768]
                                 [--rounds 9] [--only NAME,..]

In turns, 256 MB written before each, medians of events. `share` is a row's rate over that of a copy (torch) that moves as many bytes."""
import argparse, ctypes, json, statistics, sys, os
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cuda_bench import Coda, Kernel

TEXT = b"""
program cross_entropy_gradient {
    in Z : bf16[M, V]; in lse : f32[M]; in t : i32[M]; in d : f32[M]
    p = exp(Z - lse) - onehot(t, V)
    out dZ : bf16[M, V] = p * d
    out c : f32[M, V/128] = sum(Z * p, V:128)
}
program swiglu { in G, U : bf16[M, N]; out Y : bf16[M, N] = silu(G) * U }
program swiglu_gradient {
    in G, U, dY : bf16[M, N]
    s = sigmoid(G)
    out dG : bf16[M, N] = dY * U * (s + G * s * (1 - s))
    out dU : bf16[M, N] = dY * G * s
}
program norm { in x : bf16[M, N]; in r : f32[M]; in g : bf16[N]; out H : bf16[M, N] = x * r * g }
program norm_statistics {
    in x : bf16[M, N]; in g : bf16[N]
    out S : f32[M, N/128] = sum(x * x, N:128)
    out H : bf16[M, N] = x * g
}
program weight_gradient { in d, x : bf16[M, N]; in r : f32[M]; out dg : f32[M/64, N] = sum(d * x * r, M:64) }
program narrow { in x : f32[M, N]; out y : bf16[M, N] = x }
program widen { in x : bf16[M, N]; out y : f32[M, N] = x }
"""


def cases(width, m, v):
    f = {2048: 5632, 4096: 11008, 8192: 22016}.get(width, 4 * width)
    return {
        "rope_bwd": dict(M=m, N=3 * width, T=2 * width, D=128, P=8192), "cross_entropy_gradient": dict(M=m, V=v),
        "swiglu": dict(M=m, N=f), "swiglu_gradient": dict(M=m, N=f), "norm": dict(M=m, N=width),
        "norm_statistics": dict(M=m, N=width), "weight_gradient": dict(M=m, N=width), "embed_rms": dict(M=m, N=width, V=2048),
        "narrow": dict(M=m, N=f), "widen": dict(M=m, N=f), "adamw": dict(M=f, N=width), "square_sum": dict(M=f, N=width),
    }


def parse(coda):
    module = ctypes.c_void_p()
    coda.check(coda.lib.coda_module_parse, TEXT, ctypes.c_size_t(len(TEXT)), b"passes", ctypes.byref(module))
    return module


def moved(kernel):
    """Each operand once; of a gathered table the rows that are read."""
    rows = kernel.data["X"].shape[0] if kernel.name == "embed_rms" else 0
    return sum((rows * t.shape[1] if rows and n == "E" else t.numel()) * t.element_size()
               for n, t in kernel.data.items() if n != "table")


def interleaved(variants, rounds, flush):
    times = {k: [] for k in variants}
    for i in range(rounds + 2):
        for name, f in variants.items():
            flush.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(); f(); b.record()
            if i >= 2:
                times[name].append((a, b))
    torch.cuda.synchronize()
    return {k: statistics.median(a.elapsed_time(b) for a, b in v) for k, v in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--width", default="2048")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    coda, flush = Coda(args.library), torch.empty(64 << 20, dtype=torch.float32, device="cuda")
    standard, own = coda.module, parse(coda)
    print(coda.lib.coda_device_description(coda.device).decode(), file=sys.stderr)
    a, b = (torch.empty(5 << 29, dtype=torch.uint8, device="cuda") for _ in range(2))
    for width in map(int, args.width.split(",")):
        kernels = {}
        for name, dims in cases(width, args.tokens, args.vocabulary).items():
            if args.only and name not in args.only.split(","):
                continue
            coda.module = standard if name in ("rope_bwd", "embed_rms", "adamw", "square_sum") else own
            kernels[name] = Kernel(coda, name, dims)
        variants = dict(kernels)
        for name, kernel in kernels.items():
            half = moved(kernel) // 2 // 16 * 16
            variants[name + " copy"] = lambda half=half: b[:half].copy_(a[:half])
        ms = interleaved(variants, args.rounds, flush)
        for name, kernel in kernels.items():
            copy = ms[name + " copy"]
            print(json.dumps(dict(row="pass", program=name, width=width, ms=round(ms[name], 4), mbytes=round(moved(kernel) * 1e-6),
                                  gbytes_per_s=round(moved(kernel) / ms[name] * 1e-6), copy_ms=round(copy, 4),
                                  share=round(copy / ms[name], 3))), flush=True)
        del kernels
    return 0


if __name__ == "__main__":
    sys.exit(main())
