"""The backward of a stack of products whose output left as views of its columns (query, key, value).

Their gradients arrive as tensors of their own. Instead of joining them first, the elementwise program that reads them runs once
for each, on its columns of what it writes. The last one's (value's), which it would only copy, is read where it lies.
"""

import dataclasses
import re

from .._program import Module

_HEADER = re.compile(r"^program (\w+) \{$", re.M)
_OPERAND = re.compile(r"\b(\w+)( : \w+\[[^\]]*\bN\b[^\]]*\])")


@dataclasses.dataclass
class Columns:
    """A backward that takes one gradient a weight instead of the last output's."""

    replaced: dict   # by name of a program those in its place
    arguments: list
    parts: dict      # operands that are columns of another one: (that, the first column)

    def order(self, programs):
        return [made for p in programs for made in self.replaced.get(p.name, [p])]


def columns_apart(operator, programs, arguments):
    """None where the first program is more than an elementwise one of rotations and sums over runs."""
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
    texts = {programs[0].name: [p.text for p in Module.parse("".join(apart), operator.name)]}
    _read_where_it_lies(operator.columns, widths, output, texts, programs, parts)
    made = {name: list(Module.parse("".join(new), operator.name)) for name, new in texts.items()}
    gradients = {o.name: o for new in made.values() for p in new for o in p.operands}
    given = [o for o in arguments if o.name != output] + [gradients[f"{output}_{w}"] for w in operator.columns]
    return Columns(made, given, parts)


def _read_where_it_lies(columns, widths, output, texts, programs, parts):
    """Where the last weight's program copies its gradient to the columns of an out, and products alone read that: the out ends
    before them, and the products read the gradient itself. Changes `texts`, of the programs by name, and `parts`."""
    weight, width, gradient = columns[-1], widths[-1], f"{output}_{columns[-1]}"
    first, last = texts[programs[0].name][:-1], texts[programs[0].name][-1]
    copy = re.search(rf"^ +out (\w+)_{weight} : \w+\[M, {width}\] = {gradient}\n", last, re.M)
    if not copy:
        return
    name, read = copy[1], {}
    for program in programs[1:]:
        if any(o.name == name for o in program.operands):
            read[program.name] = _reading(program, name, gradient, columns, f"axis T = {' + '.join(widths[:-1])}", width)
    if not all(read.values()):
        return
    texts.update(read)
    last = last.replace(copy[0], "")
    texts[programs[0].name] = [*first, last] if re.search("^ +out ", last, re.M) else first
    parts.pop(f"{name}_{weight}")
    for part, (base, column) in parts.items():
        if base.name == name:
            parts[part] = dataclasses.replace(base, dims=(base.dims[0], "T")), column


def _reading(program, name, gradient, columns, axis, width):
    """The texts of a program that read the last columns of `name` from `gradient`; none where it is no product of them all."""
    text, weight = program.text, columns[-1]
    declared = re.search(rf"^ +in +{name} : (\w+)\[M, N\]\n", text, re.M)
    if not declared or len(re.findall(rf"\b{name}\b", text)) != 2:
        return None
    text = text.replace(declared[0], f"    in  {name} : {declared[1]}[M, T]\n")
    whole = rf"out d{'_'.join(columns)} : (\w+)\[N, (\w+)\] = {name}\.T @"
    if re.search(whole, text):  # the weights' gradients
        text = re.sub(r"axis N = .*", axis, text)
        apart = re.sub(r"^ +axis T = .*\n", "", _HEADER.sub(rf"program \1_d{weight} {{", text), flags=re.M)
        apart = re.sub(whole, rf"out d{weight} : \1[{width}, \2] = {gradient}.T @", apart)
        apart = apart.replace(f"{name} : {declared[1]}[M, T]", f"{gradient} : {declared[1]}[M, {width}]")
        return [re.sub(whole, rf"out d{'_'.join(columns[:-1])} : \1[T, \2] = {name}.T @", text), apart]
    stack = f"{name} @ stack({', '.join(columns)})"
    if stack not in text:
        return None
    text = text.replace(stack, f"({name} @ stack({', '.join(columns[:-1])}) + {gradient} @ {weight})")
    text = text.replace("[M, T]\n", f"[M, T]\n    in  {gradient} : {declared[1]}[M, {width}]\n", 1)
    keeps = len(re.findall(r"\bN\b", text)) > 1
    return [re.sub(r"( +)axis N = .*\n", rf"\g<0>\1{axis}\n" if keeps else rf"\1{axis}\n", text)]


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
