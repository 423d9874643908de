#!/usr/bin/env python3
"""Times programs on the GPU: fused, bare and cuBLAS (torch) at the shapes of a Llama layer. One JSON line a row.

    python3 bench/cuda_bench.py --library build/libcoda.so [--width 2048,4096,8192] [--only NAME,..] [--schedule a,b]
                                [--mode interleaved,steady] [--rounds 12] [--check]

interleaved: every variant once a round, in random order, 256 MB written before each (L2 flushed), median.
steady: blocks of back-to-back launches, 40 ms to warm and 90 ms timed, order rotated, median of 3.

Weight gradients: `bare` adds in place to f32, as training does; `written` writes bf16 over what was there, as torch.mm does.
"""
import argparse, ctypes, json, math, random, statistics, sys
try:
    import torch
except ImportError:  # --table needs none
    torch = None

from structures import BF16, F16, F32, I32, Dim, Dims, Error, Operand, Options, Tensor

WRITTEN = b"""program wgrad_written {
    in  dY : bf16[K, M]
    in  X  : bf16[K, N]
    out dW : bf16[M, N] = dY.T @ X
}"""
TORCH = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16, I32: torch.int32} if torch else {}


class Coda:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("coda_module_find",):
            getattr(self.lib, name).restype = ctypes.c_void_p
            getattr(self.lib, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.lib.coda_device_description.restype = ctypes.c_char_p
        self.lib.coda_kernel_source.restype = ctypes.c_char_p
        self.device = ctypes.c_void_p()
        self.check(self.lib.coda_device_open, b"cuda", ctypes.byref(self.device))
        self.module = ctypes.c_void_p()
        self.check(self.lib.coda_standard_module, ctypes.byref(self.module))
        self.more = ctypes.c_void_p()
        self.check(self.lib.coda_module_parse, WRITTEN, ctypes.c_size_t(len(WRITTEN)), None, ctypes.byref(self.more))

    def check(self, function, *arguments):
        error = Error()
        if function(*arguments, ctypes.byref(error)) != 0:
            raise RuntimeError(error.message.decode())


def fill(name, dtype, shape, role):
    device = "cuda"
    if role == 1:
        return torch.full(shape, float("nan") if dtype != I32 else -1, dtype=TORCH[dtype], device=device)
    if dtype == I32:
        return torch.arange(shape[0], device=device, dtype=torch.int32) % 2048
    if name in ("S",):
        return torch.rand(shape, device=device) * 128 + 64
    if name == "table":
        return torch.randn(shape, device=device)
    scale = shape[1] ** -0.5 if name.startswith("W") and len(shape) == 2 else 1.0
    return (torch.randn(shape, device=device, dtype=torch.float32) * scale).to(TORCH[dtype])


class Kernel:
    def __init__(self, coda, program, dims, schedule=None, columns=0, share=None):
        self.coda, self.name, lib = coda, program, coda.lib
        module = coda.more if program == "wgrad_written" else coda.module
        p = ctypes.c_void_p(lib.coda_module_find(module, program.encode()))
        d = Dims()
        names = [axis.encode() for axis in dims]  # must outlive d
        for i, size in enumerate(dims.values()):
            d.item[i] = Dim(names[i], size)
        d.count = len(dims)
        options = Options(ctypes.sizeof(Options), 0, columns, schedule.encode() if schedule else None, 0)
        self.kernel = ctypes.c_void_p()
        coda.check(lib.coda_kernel_create, coda.device, p, ctypes.byref(d), ctypes.byref(options), ctypes.byref(self.kernel))
        self.count = lib.coda_program_operand_count(p)
        self.tensors = (Tensor * self.count)()
        self.data, self.role = {}, {}
        for i in range(self.count):
            o, shape = Operand(), (ctypes.c_int64 * 2)()
            lib.coda_program_operand(p, i, ctypes.byref(o))
            coda.check(lib.coda_program_operand_shape, p, i, ctypes.byref(d), shape)
            name, size = o.name.decode(), list(shape[:o.rank])
            if share and name in share and o.role == 0:
                t = share[name]
            else:
                t = fill(name, o.dtype, size, o.role)
            self.data[name], self.role[name] = t, o.role
            self.tensors[i] = Tensor(t.data_ptr(), o.dtype, o.rank, shape, 0)

    def __call__(self):
        error = Error()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.coda.lib.coda_kernel_launch(self.kernel, self.tensors, self.count, None, stream, ctypes.byref(error)):
            raise RuntimeError(error.message.decode())

    def outs(self):
        return {n: t for n, t in self.data.items() if self.role[n]}


def layer(width):
    """name: (program, dims, bare program, bare dims, torch operands)"""
    m, d, f, heads = 16384, width, {2048: 5632, 4096: 11008, 8192: 22016}[width], width
    v = 32768
    g = lambda n, k: ("gemm", dict(M=m, N=n, K=k))
    dg = lambda n, k: ("gemm_dgrad", dict(M=m, N=n, K=k))
    return {
        "out": ("gemm_residual_rms", dict(M=m, N=d, K=d), *g(d, d)),
        "gate_up": ("gemm_rms_swiglu", dict(M=m, N=f, K=d), *g(2 * f, d)),
        "down": ("gemm_residual_rms", dict(M=m, N=d, K=f), *g(d, f)),
        "qkv": ("gemm_rms_rope", dict(M=m, Q=d, E=d, K=d, D=128, P=2048), *g(3 * d, d)),
        "dgrad_qkv": ("gemm_rms_bwd_qkv", dict(M=m, N=d, Q=d, E=d), *dg(d, 3 * d)),
        "dgrad_down": ("gemm_swiglu_bwd", dict(M=m, N=f, K=d), *dg(f, d)),
        "dgrad_gate_up": ("gemm_rms_bwd_twin", dict(M=m, N=d, K=f), *dg(d, 2 * f)),
        "dgrad_out": ("gemm_dgrad", dict(M=m, N=d, K=d), *dg(d, d)),
        "wgrad_qkv": ("gemm_wgrad", dict(M=3 * d, N=d, K=m), "gemm_wgrad", dict(M=3 * d, N=d, K=m)),
        "wgrad_down": ("gemm_wgrad", dict(M=d, N=f, K=m), "gemm_wgrad", dict(M=d, N=f, K=m)),
        "wgrad_gate_up": ("gemm_wgrad", dict(M=2 * f, N=d, K=m), "gemm_wgrad", dict(M=2 * f, N=d, K=m)),
        "wgrad_out": ("gemm_wgrad", dict(M=d, N=d, K=m), "gemm_wgrad", dict(M=d, N=d, K=m)),
        "head": ("gemm_rms_lse", dict(M=m, V=v, K=d), *g(v, d)),
        "dgrad_head": ("gemm_rms_bwd_head", dict(M=m, N=d, K=v), *dg(d, v)),
    }


def cublas(bare, kernel):
    t = kernel.data
    if bare == "gemm":
        a, b, out = t["A"], t["W"].t(), t["Y"]
    elif bare == "gemm_dgrad":
        a, b, out = t["dY"], t["W"], t["dA"]
    else:
        a, b, out = t["dY"].t(), t["X"], torch.empty(t["dW"].shape, dtype=torch.bfloat16, device="cuda")
    return lambda: torch.mm(a, b, out=out)


flush_buffer = None


def flush():
    global flush_buffer
    if flush_buffer is None:
        flush_buffer = torch.empty(64 * 1024 * 1024, dtype=torch.float32, device="cuda")
    flush_buffer.zero_()


def interleaved(variants, rounds):
    times, order = {k: [] for k in variants}, random.Random(1)
    for i in range(rounds + 2):
        for k in order.sample(list(variants), len(variants)):
            flush()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(); variants[k](); b.record()
            if i >= 2:
                times[k].append((a, b))
    torch.cuda.synchronize()
    return {k: statistics.median(a.elapsed_time(b) for a, b in v) for k, v in times.items()}


def steady(variants, guess, blocks=3, warm=40.0, timed=90.0):
    times = {k: [] for k in variants}
    names = list(variants)
    for block in range(blocks):
        for k in names[block % len(names):] + names[:block % len(names)]:
            f, n = variants[k], max(2, int(timed / guess[k]))
            for _ in range(max(1, int(warm / guess[k]))):
                f()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for _ in range(n):
                f()
            b.record()
            torch.cuda.synchronize()
            times[k].append(a.elapsed_time(b) / n)
    return {k: statistics.median(v) for k, v in times.items()}


def difference(a, b):
    a, b = a.float(), b.float()
    return ((a - b).norm() / b.norm()).item()


def print_table(paths):
    """The Markdown table of earlier runs' lines: milliseconds interleaved, ratios of both modes."""
    rows = {}
    for path in paths:
        for line in open(path):
            row = json.loads(line) if line.startswith("{") else {}
            if "mode" in row:
                rows.setdefault((row["width"], row["label"]), {})[row["mode"]] = row
    print("| width | product | program | cuBLAS | bare | fused | bare / cuBLAS | fused / cuBLAS | fused / bare "
          "| steady: bare / cuBLAS | fused / cuBLAS | fused / bare |\n|" + "---|" * 12)
    for (width, label), modes in sorted(rows.items(), key=lambda item: item[0][0]):
        first = modes.get("interleaved") or modes["steady"]
        fused = next((k for k in first["ms"] if k not in ("cublas", "bare", "written")), None)
        cells = [str(width), label.replace("_", " "), f"`{first['program']}`"]
        cells += [f"{first['ms'][k]:.4f}" if k in first["ms"] else "-" for k in ("cublas", "bare", fused)]
        for mode in ("interleaved", "steady"):
            ms = modes[mode]["ms"] if mode in modes else {}
            bare = f"{ms['bare'] / ms['cublas']:.3f}" if ms else "-"
            if "written" in ms:
                bare += f", written {ms['written'] / ms['cublas']:.3f}"
            cells += [bare] + [f"{ms[fused] / ms[k]:.3f}" if fused in ms else "-" for k in ("cublas", "bare")]
        print("| " + " | ".join(cells) + " |")
    print("\nGeometric mean of bare / cuBLAS over the layer's twelve products:", end="")
    for mode in ("interleaved", "steady"):
        for width in sorted({w for w, _ in rows}):
            logs = [math.log(m[mode]["ms"].get("written", m[mode]["ms"]["bare"]) / m[mode]["ms"]["cublas"])
                    for (w, label), m in rows.items() if w == width and mode in m and "head" not in label]
            if logs:
                print(f" {mode} {width}: {math.exp(sum(logs) / len(logs)):.3f};", end="")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libcoda.so")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="no run: earlier runs' lines as a Markdown table")
    parser.add_argument("--width", default="2048,4096,8192")
    parser.add_argument("--only", default="")
    parser.add_argument("--schedule", default="warps", help="of the fused programs, separated by commas")
    parser.add_argument("--bare", default="warps")
    parser.add_argument("--mode", default="interleaved,steady")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--check", action="store_true", help="compare every out with the portable schedule's")
    args = parser.parse_args()
    if args.table:
        return print_table(args.table)
    coda = Coda(args.library)
    print(coda.lib.coda_device_description(coda.device).decode(), file=sys.stderr)
    for width in map(int, args.width.split(",")):
        for label, (program, dims, bare, bare_dims) in layer(width).items():
            if args.only and label not in args.only.split(","):
                continue
            torch.manual_seed(1)
            base = Kernel(coda, bare, bare_dims, None if bare == "gemm_wgrad" else args.bare)
            variants, kernels = {"cublas": cublas(bare, base), "bare": base}, {}
            if bare == "gemm_wgrad":
                variants["written"] = Kernel(coda, "wgrad_written", bare_dims, args.bare, share=base.data)
            if program != bare:
                share = {}
                for schedule in args.schedule.split(","):
                    try:
                        k = kernels[schedule] = Kernel(coda, program, dims, None if schedule == "default" else schedule, share=share)
                    except RuntimeError as error:
                        print(json.dumps({"label": label, "schedule": schedule, "error": str(error)}), flush=True)
                        continue
                    share.update(k.data)
                    variants[schedule] = k
            errors = {}
            if args.check:
                base(); variants["cublas"]()
                reference = base.data["Y"] if bare == "gemm" else base.data["dA"] if bare == "gemm_dgrad" else None
                if reference is not None:
                    mine = reference.clone(); variants["cublas"]()
                    errors["bare"] = difference(mine, reference)
                if kernels:
                    plain = Kernel(coda, program, dims, "portable", share=share); plain()
                    for s, k in kernels.items():
                        k()
                        for n, t in k.outs().items():
                            errors[s + "." + n] = difference(t, plain.data[n])
                            if torch.isnan(t).any().item():
                                errors[s + "." + n] = "nan"
                    del plain
            row = {"label": label, "program": program, "width": width, "dims": dims, "err": errors}
            times = interleaved(variants, args.rounds)
            for mode in args.mode.split(","):
                t = times if mode == "interleaved" else steady(variants, times)
                flops = 2.0 * bare_dims["M"] * bare_dims["N"] * bare_dims["K"]
                print(json.dumps({**row, "mode": mode, "ms": {k: round(v, 4) for k, v in t.items()},
                                  "to_cublas": {k: round(v / t["cublas"], 4) for k, v in t.items()},
                                  "to_bare": {k: round(v / t["bare"], 4) for k, v in t.items()},
                                  "tflops_bare": round(flops / t["bare"] / 1e9, 1)}), flush=True)
            del base, kernels, variants
            share = None
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
