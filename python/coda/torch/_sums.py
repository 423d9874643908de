"""The last sums of a backward: a vector's gradient leaves the programs as sums over runs of rows, f32[M/64, D]."""

import re

from .._program import Module


def sums_of_runs(wanted, sources):
    """Programs that finish such gradients: {place in `wanted`: program}, and the axes that they count runs with.

    wanted    operands of the operator's block, whose gradients are asked for
    sources   for each the name of its gradient, the operand that it is, and parts (None where it is whole)
    """
    programs, axes = {}, {}
    for i, (o, (name, made, parts)) in enumerate(zip(wanted, sources)):
        runs = re.fullmatch(r"(\w+)/(\d+)", made.dims[0]) if len(made.dims) == 2 and len(o.dims) == 1 else None
        if parts or not runs or made.dims[1] != o.dims[0]:
            continue
        axis = f"{runs[1]}_runs_{runs[2]}"
        axes[axis] = f"({runs[1]} + {int(runs[2]) - 1}) // {runs[2]}"
        text = f"program {name}_sum {{\nin {name} : {made.dtype}[{axis}, {o.dims[0]}]\n" \
               f"out {name}_sum : {o.dtype}[{o.dims[0]}] = sum({name}, {axis})\n}}\n"
        programs[i] = Module.parse(text, f"gradient of {o.name}")[0]
    return programs, axes
