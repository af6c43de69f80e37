"""Claims to be measured, such as ``h3.A2.2@2=-1/2``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra import limits
from scaling_algebra.arguments import check_arguments
from scaling_algebra.dynamics.quantities import parse_inner_product
from scaling_algebra.errors import UsageError, count_noun, quote_value, unknown_name_error


@dataclass(frozen=True)
class Claim:
    """A claimed exponent of a quantity.

    Attributes:
        quantity: name of the quantity, as in the report, or an inner product ``<A@s, B@t>`` of quantity A after s
            updates and B after t.
        step: number of updates done; None for every step at which the quantity is not exactly zero.
        exponent: claimed exponent of n; None for exactly zero.
    """

    quantity: str
    step: int | None
    exponent: Fraction | None

    def __post_init__(self) -> None:
        if not (isinstance(self.quantity, str) and self.quantity):
            raise UsageError(
                f"the quantity of a claim is {quote_value(self.quantity)}; give a name such as 'h3.change'"
            )
        if self.step is not None and not (isinstance(self.step, int) and self.step >= 0):
            raise UsageError(
                f"the claim about {self.quantity} has step {quote_value(self.step)}; give a number, 0 or more"
            )
        if not isinstance(self.exponent, Fraction | int | None):
            raise UsageError(
                f"the claim about {self.quantity} has exponent {quote_value(self.exponent)}; give a Fraction"
            )

    def __str__(self) -> str:
        at = "" if self.step is None else f"@{self.step}"
        return f"{self.quantity}{at}={'zero' if self.exponent is None else self.exponent}"

    @classmethod
    @check_arguments
    def parse(cls, text: str) -> Claim:
        """Reads ``quantity[@step]=exponent``, where the exponent is a rational or ``zero``.

        Raises:
            UsageError: the text has another form.

        >>> Claim.parse("h3.A2.2@2=-1/2") Claim(quantity='h3.A2.2', step=2, exponent=Fraction(-1, 2))
        """
        name, equals, number = (s.strip() for s in text.partition("="))
        product, _, rest = name.rpartition(">")  # steps inside an inner product <A@s, B@t> are not that of the claim
        inside = product + ">" if product else ""
        quantity, at, when = (s.strip() for s in rest.partition("@"))
        quantity = inside + quantity
        if not (equals and quantity and number):
            raise UsageError(f"cannot read the claim {text!r}; write quantity@step=exponent, such as h3.A2.2@2=-1/2")
        try:
            step = limits.parse_update(when) if at else None
        except ValueError:
            raise UsageError(f"the claim {text!r} has step {when!r}; give a number of updates, 0 or more") from None
        if number == "zero":
            exponent = None
        else:
            try:
                exponent = limits.parse_rational(number)
            except ValueError as error:
                raise UsageError(
                    f"the claim {text!r} has exponent {number!r}, {error}; give a rational such as -1/2, or zero"
                ) from None
        return cls(quantity, step, exponent)

    def check_steps(self, steps: int) -> None:
        """Checks that the steps of the claim were measured, where ``steps`` is the number of updates of the run.

        Raises:
            UsageError: one was not reached.
        """
        inside = [step for _, step in parse_inner_product(self.quantity)]
        for step in (self.step, *inside):
            if step is not None and step > steps:
                all_run = f"{count_noun(steps, 'step')} {'is' if steps == 1 else 'are'} trained; give --steps"
                raise UsageError(f"the claim about {self.quantity} is at step {step}, but only {all_run}")

    def check(self, measured: Iterable[str], steps: int) -> None:
        """Checks that the claim can be judged.

        Args:
            measured: names of the measured quantities.
            steps: number of updates of the run.

        Raises:
            UsageError: the quantity is not among the measured ones, or a step was not reached.
        """
        self.check_steps(steps)
        names = list(measured)
        parts = [name for name, _ in parse_inner_product(self.quantity)]
        if self.quantity not in names and not (parts and set(parts) <= set(names)):
            raise unknown_name_error("measured quantity", self.quantity, names)
