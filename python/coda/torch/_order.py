"""The order of a sequence's launches: which programs are sets of one launch, and which launches are made by one call."""

import math
import re
import struct

from .._library import load

MOST_SETS = 8


def product_form(program):
    """What plain products of one kernel have in common: which operands are transposed, types, roles. None: it is none."""
    product = re.fullmatch(r"program \w+ \{(?: in \w+ : \w+\[\w+, \w+\]){2} out \w+ : \w+\[\w+, \w+\] (\+?=) (\w+)(\.T)? @ "
                           r"(\w+)(\.T)? \}", " ".join(re.sub(r"#.*", "", program.text).split()))
    if not product:
        return None
    names = [o.name for o in program.operands]
    left, right = names.index(product.group(2)), names.index(product.group(4))
    return (product.group(1), left, right, product.group(3), product.group(5), *(o.dtype for o in program.operands))


def sets_of_products(programs):
    """The programs by index, those side by side that are products of one form as one list: sets of one launch."""
    lists, form = [], None
    for i, program in enumerate(programs):
        mine = product_form(program)
        if mine is not None and mine == form and len(lists[-1]) < MOST_SETS:
            lists[-1].append(i)
        else:
            lists.append([i])
        form = mine
    return lists


def products_gathered(programs, kept, most_waiting):
    """The programs in an order in which a product that nothing reads stands before the next one of its form, so that both may be
    sets of one launch: gradients of weights. It waits only where at most so many matrices more have to lie there meanwhile;
    `kept` are the operands that do so anyway."""
    programs = list(programs)
    for i in reversed(range(len(programs) - 1)):
        form, later = product_form(programs[i]), programs[i + 1:]
        inputs = {o.name for o in programs[i].operands if o.role == "in"} - kept
        (output,) = [o.name for o in programs[i].operands if o.role != "in"] if form else [None]
        place = next((k for k, p in enumerate(later) if form and product_form(p) == form), 0)
        waiting = inputs - {o.name for p in later[place:] for o in p.operands}
        if place and len(waiting) <= most_waiting and all(o.name != output for p in later for o in p.operands):
            programs[i:i + place + 1] = [*later[:place], programs[i]]
    return programs


def sizes_of_product(program):
    """Rows, columns and depth of a plain bf16 product, as they are declared; None: it is none."""
    form = product_form(program)
    if form is None or form[5:] != ("bf16",) * 3:
        return None
    left, out = program.operands[form[1]], program.operands[2]
    return out.dims[0], out.dims[1], left.dims[0 if form[3] else 1]


def is_faster(device, lists, gathered):
    """Are products, [(rows, columns, depth), ..] in lists that may be one launch, faster when gathered? The library says what
    launches take. One of less than a twenty-fifth is no reason to let matrices wait."""
    def time(products):
        flat = [n for sizes in products for n in sizes]
        return load().coda_product_time(device.handle, struct.pack(f"@{len(flat)}q", *flat), len(products))

    def best(products):
        return min(time(products) or math.inf, sum(time([p]) for p in products))
    return 25 * sum(map(best, gathered)) < 24 * sum(map(best, lists))


def is_small(rows, columns, depth):
    """Is a product's result small beside the larger of its factors? So are gradients of weights beside activations of many tokens."""
    return 4 * min(rows, columns) <= depth


def calls_of(made, dying):
    """The launches by index, those that one call of the library makes as one list.

    In a list, launches that touch nothing of those before them may take over their last wave. Another thread may launch on the same
    stream between two of them, and what that one frees must not become memory of the next: so all memory of a call is allocated
    before it. Therefore a call ends where the next launch needs new memory and something is free by then.

    made     for each launch, how many matrices are allocated for it
    dying    for each, how many tensors are used last by it
    """
    calls, died = [], 0
    for i, (new, last) in enumerate(zip(made, dying)):
        if calls and not (new and died):
            calls[-1].append(i)
        else:
            calls.append([i])
            died = 0
        died += last
    return calls


_ELSEWHERE = re.compile(r"\b(rope|rope_inverse|halves|join_halves|pairs|join|gather|onehot|pick)\(")


def overwritten(programs, free, results):
    """Which outs may take the memory of an `in` of the same program, {out: in}: matrices of one type and shape, of which the `in`
    is among `free`, is read at the places that are written, and is not read later."""
    last = {o.name: i for i, p in enumerate(programs) for o in p.operands}
    taken = {}
    for i, program in enumerate(programs):
        if _ELSEWHERE.search(program.text):
            continue
        ins = [o for o in program.operands if o.role == "in" and o.name in free and last[o.name] == i]
        for out in program.operands:
            place = next((o for o in ins if out.role == "out" and out.name not in results and len(o.dims) == 2 and
                          (o.dtype, o.dims) == (out.dtype, out.dims)), None)
            if place is not None:
                taken[out.name] = place.name
                ins.remove(place)
    return taken
