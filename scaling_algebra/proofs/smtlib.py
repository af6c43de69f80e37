"""Writes the unsatisfiable clauses of a proof in the format SMT-LIB 2, so that any other solver can check them.

This checks the step from the engine's facts (the assertions, each with its reason) to the conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from scaling_algebra.linear.clauses import Clause
from scaling_algebra.linear.linear import Linear

from .prover import Proof

RESET = "(reset)\n"
"""Separates two scripts."""


def scripts_of(proof: Proof) -> str:
    """Writes one script for every structure that was decided, separated by ``(reset)``. The proof is confirmed if a
    solver answers ``unsat`` to all."""
    scripts = [script(a.clauses, proof.claim(a), proof.reading()) for a in proof.attempts if a.clauses]
    return RESET.join(scripts)


def script(clauses: Sequence[Clause], claim: str, reading: Sequence[str]) -> str:
    """Writes a system of clauses as a script in the logic QF_LRA, with one named assertion for each clause."""
    names = sorted({name for clause in clauses for atom in clause.atoms for name, _ in atom.counts})
    lines = [f"; {line}" for line in (claim, *reading, "an assertion is named by its number and its demand")]
    lines += ["(set-option :produce-unsat-cores true)", "(set-logic QF_LRA)"]
    lines += [f"(declare-const {_symbol(name)} Real)" for name in names]
    for number, clause in enumerate(clauses, 1):
        lines.append(f"; {clause.because}")
        lines.append(f"(assert (! {_clause(clause)} :named {_symbol(f'{number} {clause.label}')}))")
    lines.append("(check-sat)")
    return "\n".join(lines) + "\n"


def _clause(clause: Clause) -> str:
    atoms = [_atom(atom) for atom in clause.atoms]
    return "false" if not atoms else atoms[0] if len(atoms) == 1 else f"(or {' '.join(atoms)})"


def _atom(atom: Linear) -> str:
    terms = [_number(atom.constant)]
    terms += [_symbol(name) if n == 1 else f"(* {_number(Fraction(n))} {_symbol(name)})" for name, n in atom.counts]
    total = f"(+ {' '.join(terms)})" if len(terms) > 1 else terms[0]
    return f"(distinct {total} 0.0)" if atom.sense == "!=" else f"({atom.sense} {total} 0.0)"


def _number(x: Fraction) -> str:
    size = f"{abs(x.numerator)}.0" if x.denominator == 1 else f"(/ {abs(x.numerator)}.0 {x.denominator}.0)"
    return f"(- {size})" if x < 0 else size


def _symbol(name: str) -> str:
    return "|" + name.replace("|", "/").replace("\\", "/") + "|"
