"""The product of two kernels against every matching written out, and the benchmark's products."""

import random

import pytest

from scaling_algebra.counting.canonical import canonicalise
from scaling_algebra.counting.kernels import DOUBT, INDICATOR, Contraction, Exhausted, Kernel, find_matching, multiply

HALF = {"N": 6, "M": 4, "K": 3, "D": 0}
SHAPES = {"U": "N", "V": "NN", "W": "MN", "X": "M", "R": "K", INDICATOR + "s)": "M", DOUBT[0]: ""}


def kernel(rng):
    """A random kernel: up to three components, some of them twice, over shared open classes."""
    opens = [rng.choice("NNMMKD") for _ in range(rng.randint(0, 3))]
    types, leaves = list(opens), []
    for _ in range(rng.randint(0, 3)):
        own, part = [], []
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(3 * ["U", "V", "W"] + list(SHAPES))
            chosen = []
            for axis in SHAPES[name]:
                places = [("open", c) for c, x in enumerate(opens) if x == axis or {x, axis} == {"K", "M"}]
                places += [("own", c) for c, x in enumerate(own) if x == axis]
                if not places or rng.random() < 0.4:
                    places = [("own", len(own))]
                    own.append(axis)
                chosen.append(rng.choice(places))
            part.append((name, chosen))
        for _ in range(rng.choice((1, 1, 2, 3))):
            shift = len(types)
            types += own
            leaves += [(n, tuple(c if where == "open" else c + shift for where, c in at)) for n, at in part]
    places = [rng.randrange(len(opens)) if rng.random() < 0.1 else c for c in range(len(opens))]
    live = {*places, *(c for name, at in leaves if not name.startswith(INDICATOR) for c in at)}
    leaves = [(name, at) for name, at in leaves if live.issuperset(at)]
    return Kernel(*canonicalise(types, places, leaves))


def factors(rng):
    """Two random kernels of at most ten leaves, and how they meet."""
    while True:
        a, b = kernel(rng), kernel(rng)
        left = tuple(range(len(a.open_classes)))
        right, free = [], list(left)
        for c in b.open_classes:
            same = [x for x in free if a.class_axes[a.open_classes[x]] == b.class_axes[c]]
            right.append(rng.choice(same) if same and rng.random() < 0.7 else len(left) + len(right))
            free = [x for x in free if x != right[-1]]
        labels = sorted({*left, *right})
        out = tuple(x for x in labels if rng.random() < 0.5)
        if len(a.leaves) + len(b.leaves) <= 10:
            return a, b, Contraction(left, tuple(right), out)


def size(term):
    made, coherent = term
    return (
        sum(HALF[x] for x in made.summed_axes())
        - sum(HALF[x] for x in made.repeated_axes())
        + 2 * sum(map(HALF.get, coherent))
    )


def plain(a, b, contraction):
    """Every kernel of a product with its coherent axes, one matching after the other, and the Cauchy-Schwarz bound."""
    shift, types = len(a.class_axes), a.class_axes + b.class_axes
    opens = (*a.open_classes, *(c + shift for c in b.open_classes))
    labels = list(zip(contraction.left + contraction.right, opens, strict=True))
    joins = [(c, d) for x, c in labels for y, d in labels if x == y]
    right = [(name, tuple(c + shift for c in at)) for name, at in b.leaves]
    marks = [leaf for leaf in (*a.leaves, *right) if leaf[0].startswith(INDICATOR)]
    left, right = ([leaf for leaf in side if not leaf[0].startswith(INDICATOR)] for side in (a.leaves, right))

    def root(pairs):
        of = list(range(len(types)))
        for c, d in joins + [z for (_, x), (_, y) in pairs for z in zip(x, y, strict=True)]:
            of = [of[c] if r == of[d] else r for r in of]
        return of

    of, start = root([]), []
    for x in list(left):
        y = next((y for y in right if x[0] == y[0] and [of[c] for c in x[1]] == [of[c] for c in y[1]]), None)
        if y is not None:
            start.append((x, y))
            left.remove(x)
            right.remove(y)

    def matchings(xs, ys):
        if not xs:
            yield [], ys
            return
        for k, y in enumerate(ys):
            if y[0] == xs[0][0]:
                for pairs, rest in matchings(xs[1:], ys[:k] + ys[k + 1 :]):
                    yield [(xs[0], y), *pairs], rest
        for pairs, rest in matchings(xs[1:], ys):
            yield pairs, [xs[0], *rest]

    terms = set()
    for pairs, rest in matchings(left, right):
        of = root(pairs)
        apart = [(name, tuple(of[c] for c in at)) for name, at in rest]
        mine = {(x[0], tuple(of[c] for c in x[1])) for x in left if x in rest}
        if mine & {(y[0], tuple(of[c] for c in y[1])) for y in right if y in rest}:
            continue  # never larger than where the two are matched
        kinds = ["K" if "K" in [types[d] for d in range(len(types)) if of[d] == of[c]] else types[c] for c in of]
        outs = [of[dict(labels)[x]] for x in contraction.out]
        live = {*outs, *(c for _, at in apart for c in at)}
        gone = tuple(sorted(kinds[c] for c in set(of) - live))
        seen = {(name, tuple(of[c] for c in at)) for name, at in marks}
        apart += [mark for mark in seen if live.issuperset(mark[1])]
        terms.add((Kernel(*canonicalise(kinds, outs, apart)), gone))
    sizes = sum(size((k, ())) for k in (a, b))
    return terms, sizes + 2 * sum(HALF[types[c]] for x, c in dict(labels).items() if x not in contraction.out)


def compared(seed, count):
    rng, several = random.Random(seed), 0
    for _ in range(count):
        a, b, contraction = factors(rng)
        terms, top = plain(a, b, contraction)
        several += len(terms) > 1
        whole = multiply(a, b, contraction, HALF)
        assert set(whole.terms) == terms, (a, b, contraction)
        assert len(whole.terms) == len(terms)
        assert whole.omitted_bound is None
        slack = rng.randint(-2, 12)
        part = multiply(a, b, contraction, HALF, slack)
        within = {x for x in terms if size(x) >= top - slack}
        assert set(part.terms) == within, (a, b, contraction, slack)
        beyond = [size(x) - top for x in terms - within]
        assert part.omitted_bound is not None or not beyond
        assert part.omitted_bound is None or max(beyond, default=part.omitted_bound) <= part.omitted_bound < -slack
        if within:
            wanted = rng.choice(sorted(within, key=str))
            found = find_matching(a, b, contraction, HALF, slack, lambda k, gone, wanted=wanted: (k, gone) == wanted)
            matched = 2 * len(found.pairs) + len(found.leaves)
            assert matched == sum(not name.startswith(INDICATOR) for name, _ in a.leaves + b.leaves)
            assert all(x[0] == y[0] for x, y in found.pairs)
        if whole.nodes > 1:
            with pytest.raises(Exhausted):
                multiply(a, b, contraction, HALF, limit=whole.nodes - 1)
    return several


def test_a_product_has_the_kernels_of_all_its_matchings():
    assert compared(seed=4, count=250) > 50
