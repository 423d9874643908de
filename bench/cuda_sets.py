#!/usr/bin/env python3
"""Times weight gradients of a Llama layer as launches of their own and as sets of one launch. One JSON line a list.

    python3 bench/cuda_sets.py --library build/libcoda.so [--width 2048,4096] [--tokens 16384] [--mode interleaved,steady]
                               [--only "down, gate, up"] [--written]

apart, together: f32 gradients added in place, several coda_kernel_launch and one coda_kernel_launch_sets, whose bits are compared
first.
written: bf16 gradients that are written, not added to. cublas: torch.mm one after the other, which does that.
Modes as in cuda_bench.py.
"""
import argparse, ctypes, json
import torch
from cuda_bench import Coda, interleaved, steady
from structures import BF16, F32, Error, Tensor


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("tile_rows", ctypes.c_int), ("tile_columns", ctypes.c_int),
                ("schedule", ctypes.c_char_p), ("exact", ctypes.c_int), ("sets", ctypes.c_int)]


def lists(width):
    f = (width * 8 // 3 + 255) // 256 * 256
    qkv, down, gate, up, out = (3 * width, width), (width, f), (f, width), (f, width), (width, width)
    return {"down, gate, up": [down, gate, up], "qkv, out": [qkv, out], "gate, up": [gate, up],
            "all five": [qkv, down, out, gate, up]}


class Gradients:
    def __init__(self, coda, shapes, tokens, written):
        self.coda, self.sets = coda, len(shapes)
        module, name = (coda.more, b"wgrad_written") if written else (coda.module, b"gemm_wgrad")
        program = ctypes.c_void_p(coda.lib.coda_module_find(module, name))
        options = Options(ctypes.sizeof(Options), 0, 0, None, 0, 8)
        self.kernel = ctypes.c_void_p()
        coda.check(coda.lib.coda_kernel_create, coda.device, program, None, ctypes.byref(options), ctypes.byref(self.kernel))
        rand = lambda *shape: torch.randn(*shape, device="cuda").to(torch.bfloat16)
        self.left, self.right = [rand(tokens, m) for m, _ in shapes], [rand(tokens, n) for _, n in shapes]
        self.out = [torch.zeros(m, n, device="cuda", dtype=torch.bfloat16 if written else torch.float32) for m, n in shapes]
        self.bf16 = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for m, n in shapes]
        tensors = [t for three in zip(self.left, self.right, self.out) for t in three]
        self.tensors = (Tensor * len(tensors))(*[Tensor(t.data_ptr(), F32 if t.dtype == torch.float32 else BF16, 2,
                                                        (ctypes.c_int64 * 2)(*t.shape), 0) for t in tensors])
        self.one = [(Tensor * 3)(*self.tensors[3 * i:3 * i + 3]) for i in range(self.sets)]

    def _stream(self):
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def apart(self):
        error, stream = Error(), self._stream()
        for one in self.one:
            if self.coda.lib.coda_kernel_launch(self.kernel, one, 3, None, stream, ctypes.byref(error)):
                raise RuntimeError(error.message.decode())

    def together(self):
        error = Error()
        if self.coda.lib.coda_kernel_launch_sets(self.kernel, self.tensors, 3, self.sets, None, self._stream(),
                                                 ctypes.byref(error)):
            raise RuntimeError(error.message.decode())

    def cublas(self):
        for a, b, out in zip(self.left, self.right, self.bf16):
            torch.mm(a.t(), b, out=out)

    def same_bits(self):
        results = []
        for run in (self.apart, self.together):
            for out in self.out:
                out.fill_(0.5)
            run()
            results.append([out.clone().view(torch.uint8) for out in self.out])
        return all(torch.equal(a, b) for a, b in zip(*results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--width", default="2048,4096")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--mode", default="interleaved,steady")
    parser.add_argument("--only", default="", help="one list")
    parser.add_argument("--written", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    coda = Coda(args.library)
    for width in map(int, args.width.split(",")):
        for name, shapes in lists(width).items():
            if args.only and name != args.only:
                continue
            g = Gradients(coda, shapes, args.tokens, args.written)
            same = g.same_bits()
            variants = {"cublas": g.cublas, "apart": g.apart, "together": g.together}
            times = interleaved(variants, args.rounds)
            flops = sum(2.0 * m * n * args.tokens for m, n in shapes)
            for mode in args.mode.split(","):
                ms = times if mode == "interleaved" else steady(variants, times)
                print(json.dumps({"width": width, "gradients": name, "type": "bf16" if args.written else "f32",
                                  "same_bits": same, "mode": mode,
                                  "ms": {k: round(v, 4) for k, v in ms.items()},
                                  "to_apart": round(ms["together"] / ms["apart"], 4),
                                  "to_cublas": round(ms["together"] / ms["cublas"], 4),
                                  "tflops": round(flops / ms["together"] / 1e9, 1)}), flush=True)
            coda.lib.coda_kernel_free(g.kernel)
            del g, variants
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
