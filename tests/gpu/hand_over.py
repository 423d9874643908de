#!/usr/bin/env python3
"""The hand-overs between producer, consumers and epilogue warps, on the host: a thread a warp, with delays of any length.

Takes the text of hopper.cu and warps.cu as it is, without the functions that are single instructions of the GPU and the
waits of wgmma, which hand_over.cpp has instead, and compiles both. Needs a C++ compiler and no GPU.

    python3 tests/gpu/hand_over.py [rounds]
"""
import os, re, shutil, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = os.path.join(HERE, "..", "..", "src", "cuda", "device")
INSTRUCTIONS = """barrier_init barrier_expect barrier_wait barrier_test barrier_doze barrier_arrive barrier_arrive_at
    count_more count_so_far address_in bring bring_to_all ask elect consumers_sync group_sync""".split()
VARIANTS = [("halves, row values", ["-DHALVES=2", "-DNARROW=1", "-DVALUES=1", "-DOVER_ROWS=0"]),
            ("halves", ["-DHALVES=2", "-DNARROW=1", "-DVALUES=0", "-DOVER_ROWS=0"]),
            ("halves of every second group", ["-DHALVES=2", "-DNARROW=1", "-DVALUES=1", "-DOVER_ROWS=0", "-DSPREAD=1"]),
            ("whole tiles", ["-DHALVES=1", "-DNARROW=0", "-DVALUES=1", "-DOVER_ROWS=0"]),
            ("runs of rows", ["-DHALVES=1", "-DNARROW=0", "-DVALUES=1", "-DOVER_ROWS=1"])]


def without(text, function):
    """The text without a function's definition: on one line, or up to a brace that starts one."""
    head = r"INLINE [\w ]+\b" + function + r"\([^)]*\)"
    for body in (r" \{[^\n]*\}\n", r"\s*\{.*?\n\}\n"):
        text, count = re.subn(head + body, "", text, count=1, flags=re.S if "?" in body else 0)
        if count:
            return text
    sys.exit(f"hand_over.py: {function} is not in the text any more; change INSTRUCTIONS and hand_over.cpp")


def read(name):
    with open(os.path.join(DEVICE, name)) as file:
        return file.read()


def translate(folder):
    hopper, warps = read("hopper.cu"), read("warps.cu")
    for function in INSTRUCTIONS:
        hopper = without(hopper, function)
    hopper = re.sub(r'asm volatile\("wgmma\.(fence|commit)[^;]*;"[^;]*;', ";", hopper)
    hopper = re.sub(r'asm volatile\("wgmma\.wait_group[^;]*;" ::"n"\(FLIGHT\) : "memory"\);', "wait_for_group();", hopper)
    warps = re.sub(r'UNROLL for [^;]*;[^;]*;[^)]*\) asm volatile\("" : "=[rf]"\([^)]*\)\);[^\n]*', "", warps)
    warps = re.sub(r"#pragma unroll[^\n]*\n", "", warps)
    lanes = "if (lane < 4)\n"  # what four lanes do, the one thread does in turn
    unit = "    const u32 rows = shared_address(block.rounded) + (unit.index & 7) * SLAB_BYTES;\n"
    if unit not in warps or lanes not in warps or "asm" in hopper or "asm" in warps:
        sys.exit("hand_over.py: the text has instructions that hand_over.cpp does not know")
    warps = warps.replace(lanes, "for (int lane = 0; lane < 4; lane++)\n")
    warps = warps.replace(unit, unit + "    unit_begins(unit.count, unit.index);\n")
    for name, text in (("hopper.inc", hopper), ("warps.inc", warps)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


def main():
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        print("skipped: no C++ compiler")
        return 77
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        translate(folder)
        for name, flags in VARIANTS:
            program = os.path.join(folder, "hand_over")
            subprocess.run([compiler, "-std=c++17", "-O1", "-w", "-I", folder, *flags, os.path.join(HERE, "hand_over.cpp"),
                            "-o", program, "-lpthread"], check=True)
            done = subprocess.run([program, *(sys.argv[1:] or ["20"])], capture_output=True, text=True)
            print(f"{name}: {done.stdout.strip()}")
            failed |= done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
