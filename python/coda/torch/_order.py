"""The order of a sequence's launches: which programs are sets of one launch, and which launches are made by one call."""

import re

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


def calls_of(launches, made, dying):
    """The launches by index, those that one call of the library makes as one list.

    A launch that touches nothing of those before it in the call may take over their last wave, if its memory was there before the
    first of them: another thread may launch on the same stream between two of them, and what that one frees must not become
    memory of the next. So all memory of a call is allocated before it. Launches that are not apart join a call where that costs
    no memory.

    launches    for each, tensors by name: whether it writes them
    made        for each, how many tensors are allocated for it
    dying       for each, how many tensors are used last by it
    """
    calls, pending, died = [], {}, 0
    for i, touched in enumerate(launches):
        apart = bool(pending) and not any(name in pending and (writes or pending[name]) for name, writes in touched.items())
        if not apart:
            pending = {}
        if calls and (apart or not made[i] or not died):
            calls[-1].append(i)
        else:
            calls.append([i])
            died = 0
        died += dying[i]
        for name, writes in touched.items():
            pending[name] = writes or pending.get(name, False)
    return calls
