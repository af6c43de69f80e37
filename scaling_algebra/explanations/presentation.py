"""Makes the printed reports of explanations: the sums on the way, the largest monomials, which of their factors are
paired, the weight of every index, the mechanisms and the arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Size, Text, literal
from scaling_algebra.documents.notation import formula, tex, typeset
from scaling_algebra.spec.axes import describe_axis
from scaling_algebra.spec.glossary import ASSUMPTIONS, join_assumptions
from scaling_algebra.spec.level import Level

from .alignments import Alignments
from .monomials import Index
from .obstacles import Obstacles
from .results import Constant, Explanation, LeadingTerm, SettingExplanation


@document_of.register(Explanation)
def explanation(e: Explanation) -> Document:
    """Makes the document of the derivation of one exponent."""
    return Document(tuple(_explanation(e)), _explanation_record(e))


@document_of.register(SettingExplanation)
def setting(s: SettingExplanation) -> Document:
    """Makes the document of the derivation of one parameter, followed by that of the quantity that fixes it."""
    return Document(tuple(_setting(s)), _setting_record(s))


@document_of.register(Alignments)
def alignments(a: Alignments) -> Document:
    """Makes the document of the alignment exponents of every linear map."""
    lines = Lines.of(
        literal(a.derivation.about),
        Text(
            "forward: |dW x| = fan_in^p |dW| |x|, |W_0 dx| = fan_in^q |W_0| |dx|; "
            "backward: the transpose, with fan_out",
            r"forward: $|\Delta W x| = \mathrm{fan\ in}^p |\Delta W| |x|$, "
            r"$|W_0 \Delta x| = \mathrm{fan\ in}^q |W_0| |\Delta x|$; backward: the transpose, with fan out",
        ),
        "-: the fan does not grow, a factor is exactly zero, or a size is not certified",
    )
    rows = ((x.role, x.p, x.q, x.p_back, x.q_back) for x in a)
    grid = Grid.of(("tensor", "p", "q", "p backward", "q backward"), rows)
    record = {**a.derivation.configuration.as_json(), "step": a.step, "maps": a.maps}
    return Document((Heading(a.about), lines, grid), record)


@document_of.register(Obstacles)
def obstacles(o: Obstacles) -> Document:
    """Makes the document that lists every function of a network, and whether an answer is found without it."""
    c = o.configuration
    name = f"{c.parameterization.title}, {c.network.name}, {c.optimizer.name}, {c.ray}"
    rows = [(f"{f.out} = {f.name}", literal(_describe_answer(x))) for f, x in o.tried]
    grid = Grid.of(("left out", c.parameterization.title), rows)
    tried = [
        {"left_out": f.out, "function": f.name, "found": _describe_answer(x) == "found", "why": _why(x) or None}
        for f, x in o.tried
    ]
    return Document((Heading(literal(f"{name}, without one function")), grid), {**c.as_json(), "without": tried})


def _why(left: Level | str) -> str:
    """Returns the first reason why an answer is not certified; empty if it is.

    Args:
        left: how much of the answer is proved, or the reason why none was found.
    """
    return left if isinstance(left, str) else str(left.open[0]) if left.open else ""


def _describe_answer(left: Level | str) -> str:
    """Describes whether an answer was found: ``found``, ``2 sizes undecided: ...``, ``not found: ...``.

    Args:
        left: how much of the answer is proved, or the reason why none was found.
    """
    level = "not found" if isinstance(left, str) else "found" if left.certified else str(left)
    return f"{level}: {why}" if (why := _why(left)) else level


_RANK_ONE = Text(
    "entries of a rank-one matrix: rms(u v^T) = rms(u) rms(v)",
    r"entries of a rank-one matrix: $\mathrm{rms}(u v^\top) = \mathrm{rms}(u)\, \mathrm{rms}(v)$",
)


# blocks --------------------------------------------------------------------------------------------------------


def _explanation(e: Explanation, level: int = 1) -> list[Block]:
    assumed: list[Piece] = [f"assumes {join_assumptions(e.assumes)}"] if e.assumes else []
    lines = Lines.of(typeset(e.formula), literal(e.derivation.about), ("size: ", Size(e.exponent)), *assumed)
    opening = [Lines.of(typeset(e.reason))] if level == 1 or not e.terms else []
    blocks: list[Block] = [Heading(literal(e.about), level), *opening, lines]
    if e.exponent is None:
        return blocks
    if e.choices:
        first = "" if e.outer or e.leading < 2 else " to the first leading monomial"
        sums = [
            (literal(choice.name) if not k else "", literal(name), Size(size), "leads" if k == choice.chosen else "")
            for choice in e.choices
            for k, (name, size) in enumerate(choice.parts)
        ]
        blocks += [Heading(f"sums that lead to it{first}", 2), Grid.of(("sum", "part", "size", ""), sums)]
    if e.outer:
        factors: list[tuple[Piece, ...]] = [(c.label, c.power, Size(c.exponent)) for c in e.constants]
        factors += [(f"vector {k}", "", Size(term.exponent)) for k, term in enumerate(e.terms, 1)]
        total = f"{' + '.join(str(x) for x, _ in e.summands)} = {e.total()}"
        blocks += [Heading(_RANK_ONE, 2), Grid.of(("factor", "power", "size"), factors)]
        blocks.append(Lines.of(("exponent: ", formula(total))))
    for k, term in enumerate(e.terms, 1):
        if e.outer:
            blocks += [Heading(f"vector {k}", 2), *_term(e, term)]
        elif k == 1:
            blocks += [Heading("leading monomial" + (f", 1 of {e.leading} of equal size" if e.leading > 1 else ""), 2)]
            blocks += _term(e, term)
        else:
            pairs = ", ".join(f"{_symbol(term, p.left)} with {_symbol(term, p.right)}" for p in term.monomial.pairs)
            blocks += [Heading(f"leading monomial {k} of {e.leading}", 2), _before(e, term)]
            blocks += [Lines.of(("matched: ", typeset(pairs or "nothing"))), _reading(term)]
    return blocks


def _term(e: Explanation, term: LeadingTerm) -> list[Block]:
    m = term.monomial
    partners = {k: f"with {j + 1}" for p in m.pairs for k, j in ((p.left, p.right), (p.right, p.left))}
    blocks: list[Block] = [_before(e, term)]
    if m.factors:
        factors = [
            (str(k + 1), literal(factor.tensor), formula(_indices(term, k)), partners.get(k, "-"))
            for k, factor in enumerate(m.factors)
        ]
        blocks.append(Grid.of(("no.", "initial tensor", "indices", "matched"), factors))
    if m.indices:
        sums = [(Text(i.name, f"${i.name}$"), describe_axis(i.axis), _weight(i), i.gives) for i in m.indices.values()]
        blocks.append(Grid.of(("index", "runs over", "weight", "gives"), sums))
    if term.constants:
        times = Counter(term.constants)
        carried = [(c.label, c.power, Size(c.exponent), f"x {k}" if k > 1 else "") for c, k in times.items()]
        blocks.append(Grid.of(("constant", "power", "size", ""), carried))
    return [*blocks, _reading(term)]


def _before(e: Explanation, term: LeadingTerm) -> Lines:
    """Makes the lines that show one of the largest monomials as a sum over indices, in the symbols of the network.

    In it, indices are equal only where they are summed together, not because two factors are copies of one tensor.
    """
    before = term.monomial.contracted
    names = {role: tensor.symbol for role, tensor in e.derivation.network.tensors.items()}
    product = [tex(f"{names.get(role, role)}[{','.join(inside)}]") for role, inside in before.factors]
    summed = ",".join(x for x in before.rates if x not in before.opens)
    product_tex = (rf"\sum_{{{summed}}} " if summed else "") + " ".join(product or ["1"])
    return Lines.of(("before matching: ", Text(str(before), f"${product_tex}$")))


def _reading(term: LeadingTerm) -> Lines:
    lines = [typeset(f"mechanism {x}") for x in term.mechanisms]
    return Lines.of(*lines, ("exponent: ", Text(term.arithmetic, term.write_sum("$"))))


def _indices(term: LeadingTerm, k: int) -> str:
    return f"[{', '.join(term.monomial.names(k))}]"


def _symbol(term: LeadingTerm, k: int) -> str:
    return term.monomial.factors[k].tensor + _indices(term, k)


def _weight(i: Index) -> str:
    if i.weight == 1:
        return "1: coherent (LLN), no unmatched factor has this index"
    if i.weight > 0:
        return f"1/2: random (CLT), index of the unmatched factors {', '.join(str(k + 1) for k in i.touched)}"
    return "0: open" if i.weight == 0 else f"{i.weight}: open and repeated"


def _setting(s: SettingExplanation) -> list[Block]:
    nothing = "the tensor has no such parameter" if s.name.endswith(".eps") else "0"
    lines: list[Piece | tuple[Piece, ...]] = [literal(s.derivation.about)]
    value = s.value if s.multiplied is None else s.own
    lines.append(("value: ", nothing if value is None else value))
    if s.multiplied is not None:
        tensor, product = s.name.rpartition(".")[0], nothing if s.value is None else s.value
        lines.append(("the module multiplies ", literal(tensor), " by ", s.multiplied, "; of the product: ", product))
    if s.behind is not None:
        lines.append(typeset(f"{'fixed' if s.equation else 'is'} by {s.because}"))
    if s.equation:
        lines.append(("equation: ", formula(s.equation)))
    lines += [typeset(f"structure {line}") for line in s.structure]
    blocks: list[Block] = [Heading(literal(s.about)), Lines.of(typeset(s.reason)), Lines.of(*lines)]
    return blocks + ([] if s.behind is None else [Heading("the quantity that fixes it", 2), *_explanation(s.behind, 2)])


# records -------------------------------------------------------------------------------------------------------


def _setting_record(s: SettingExplanation) -> dict[str, Any]:
    return {
        **s.derivation.configuration.as_json(),
        "parameter": s.name,
        "value": s.value if s.multiplied is None else s.own,
        "reason": s.reason,
        "because": s.because,
        "equation": s.equation,
        "structure": s.structure,
        "behind": None if s.behind is None else _explanation_record(s.behind),
    }


def _explanation_record(e: Explanation) -> dict[str, Any]:
    return {
        **e.derivation.configuration.as_json(),
        "quantity": e.quantity,
        "step": e.step,
        "formula": e.formula,
        "exponent": e.exponent,
        "reason": e.reason,
        "note": e.note,
        "assumes": [x for x in ASSUMPTIONS if x in e.assumes],
        "sums": [{"name": c.name, "parts": c.parts, "leads": c.chosen} for c in e.choices],
        "outer": e.outer,
        "constants": _constants(e.constants),
        "leading": e.leading,
        "monomials": [_term_json(term) for term in e.terms],
    }


def _constants(constants: Iterable[Constant]) -> list[list[object]]:
    return [[c.label, c.power, c.exponent] for c in constants]


def _term_json(term: LeadingTerm) -> dict[str, Any]:
    m = term.monomial
    return {
        "before_matching": m.contracted,
        "factors": [[factor.tensor, m.names(k)] for k, factor in enumerate(m.factors)],
        "pairs": [[p.left + 1, p.right + 1] for p in m.pairs],
        "indices": [
            {"name": i.name, "axis": i.axis, "weight": i.weight, "dimension": i.rate} for i in m.indices.values()
        ],
        "constants": _constants(term.constants),
        "mechanisms": [{"letter": x.letter, "title": x.title, "evidence": x.evidence} for x in term.mechanisms],
        "arithmetic": term.arithmetic,
        "exponent": term.exponent,
    }
