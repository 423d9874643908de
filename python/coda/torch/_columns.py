"""The backward of a stack of products whose output left as views of its columns (query, key, value).

Their gradients arrive as tensors of their own. Instead of joining them first, the elementwise program that reads them runs once
for each, on its columns of what it writes.
"""

import re

from .._program import Module

_HEADER = re.compile(r"^program (\w+) \{$", re.M)
_OPERAND = re.compile(r"\b(\w+)( : \w+\[[^\]]*\bN\b[^\]]*\])")


def columns_apart(operator, programs, arguments):
    """In place of the first program one for each weight, the arguments with one gradient a weight instead of the last output's,
    and which operands are columns of another one; None where the first program is more than an elementwise one of rotations and
    sums over runs."""
    output = f"d{operator.outputs[-1].name}"
    text = programs[0].text
    if "index(" in text or "@" in text or all(o.name != output for o in programs[0].operands):
        return None
    if any(o.name == output for p in programs[1:] for o in p.operands):
        return None
    wide = [name for name, _ in _OPERAND.findall(text)]
    widths = [next(o.dims[0] for o in operator.inputs if o.name == w) for w in operator.columns]
    parts, apart = {}, []
    for i, weight in enumerate(operator.columns):
        before = " + ".join(widths[:i]) or "0"
        apart.append(_part(text, weight, widths[i], wide, rotated=i < len(operator.columns) - 1))
        for o in programs[0].operands:
            if o.name in wide and o.name != output:
                parts[f"{o.name}_{weight}"] = (o, f"({before}) // 128" if "/128" in o.dims[-1] else before)
    made = Module.parse("".join(apart), operator.name)
    gradients = [o for p in made for o in p.operands if o.name in {f"{output}_{w}" for w in operator.columns}]
    given = [o for o in arguments if o.name != output] + gradients
    return list(made), given, parts


def _part(text, weight, width, wide, rotated):
    """The text for one weight's columns, which only the first ones' rotate."""
    text = re.sub(r"^ +axis [NT] = .*\n", "", text, flags=re.M)
    text = _HEADER.sub(rf"program \1_{weight} {{", text)
    text = re.sub(r"\b(" + "|".join(wide) + r")\b", rf"\1_{weight}", text)
    text = re.sub(r"\bN\b", width, text)
    if rotated:
        return text.replace(", cols = T)", ")")
    text = re.sub(r"rope_inverse\((\w+), table, positions, cols = T\)", r"\1", text)
    return re.sub(r"^ +in +(table|positions) : .*\n", "", text, flags=re.M)
