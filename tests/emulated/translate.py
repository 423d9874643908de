#!/usr/bin/env python3
"""CUDA C as coda generates it -> C++ for emulated.h: each PTX statement becomes a call of a function that is named after it.

    c++ -E -P -x c++ kernel.cu | python3 translate.py >kernel.cpp
"""
import re, sys


def close_of(text, at):
    """Where the parenthesis that opens at `at` closes; strings are skipped."""
    depth = 0
    while True:
        c = text[at]
        if c == '"':
            at = re.compile(r'"(?:\\.|[^"\\])*"').match(text, at).end()
            continue
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at
        at += 1


def split(text, separator):
    """Parts of the text between separators outside of parentheses and strings."""
    parts, start, at = [], 0, 0
    while at < len(text):
        if text[at] == '"':
            at = re.compile(r'"(?:\\.|[^"\\])*"').match(text, at).end()
        elif text[at] == "(":
            at = close_of(text, at) + 1
        elif text[at] == separator:
            parts.append(text[start:at])
            at = start = at + 1
        else:
            at += 1
    return parts + [text[start:]]


def operands(part):
    return [re.fullmatch(r'\s*"[^"]*"\s*\((.*)\)\s*', item, re.S).group(1) for item in split(part, ",") if item.strip()]


def call(body):
    sections = split(body, ":")
    template = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', sections[0])).replace("\\n", "\n")
    names = [m for m in re.findall(r"(?:^|[;{\n])\s*(?:@!?\w+\s+)?([a-z][A-Za-z0-9_.:]*)", template) if not m.endswith(":")]
    if not names:
        return "(void)0"
    function = "ptx_" + "__".join(re.sub(r"\W+", "_", name) for name in names)
    numbers = re.findall(r", (\d+)(?=[,;])", template)
    shape = re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)", template)
    if shape:  # the fragment is one array; the last two numbers say which operands are not K-major
        array = operands(sections[1])[0].split("[")[0]
        arguments = operands(sections[2])
        return (f"emulated_wgmma({array}, {shape.group(1)}, {int(shape.group(2) == 'f16')}, {', '.join(arguments)}, "
                f"{numbers[-2]}, {numbers[-1]})")
    if not re.match("ptx_(cp_async_c[ag]|bar_sync|red_relaxed)", function):  # numbers that are arguments
        numbers = []
    return f"{function}({', '.join([e for part in sections[1:3] for e in operands(part)] + numbers)})"


def translate(text):
    text = re.sub(r"extern __shared__[^;]*?(\w+)\[\];", r"char *const \1 = emulated_shared();", text)
    text = text.replace("__shared__", "static")
    out, at = [], 0
    for found in re.finditer(r"\basm(?:\s+volatile)?\s*\(", text):
        if found.start() < at:
            continue
        end = close_of(text, found.end() - 1)
        out += [text[at:found.start()], call(text[found.end():end])]
        at = end + 1
    out.append(text[at:])
    kernel = re.search(r"(\w+)\(const __grid_constant__ (\w+) ", text)
    work = f"*(const {kernel.group(2)} *)p"
    apart = "false"
    if "await_if_apart(" + ("first_problem" if "first_problem" in text else "P") in text:
        apart = f"first_problem({work}).apart" if "first_problem" in text else f"({work}).apart"
    return ('#include "emulated.h"\n' + "".join(out) + f"\nstatic void emulated_kernel(const void *p) {{ {kernel.group(1)}({work}); }}\n"
            f"static bool emulated_is_apart(const void *p) {{ return {apart}; }}\n"
            f'extern "C" entry emulated_entry;\nentry emulated_entry = {{emulated_run, emulated_is_apart, sizeof(const {kernel.group(2)})}};\n')


if __name__ == "__main__":
    sys.stdout.write(translate(sys.stdin.read()))
