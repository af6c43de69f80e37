"""Answers the page's questions with the public functions: the only module that the page's worker calls.

A question is a flat JSON object of strings; ``ask`` is its kind, and the other entries are arguments as on the command
line. The answer is made from the documents of ``documents``; a question with ``as`` is answered with text to copy. A
module that is not installed is reported as ``needs``, so that the worker loads z3 only when a question requires it.
Read next: ``assembly.py`` (answers some questions in advance), ``site/worker.js`` (asks the others).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from scaling_algebra import files
from scaling_algebra.documents import Document, render
from scaling_algebra.documents.writers.html import fragment
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import UsageError, check_names, find_entry
from scaling_algebra.explanations.explanations import explain
from scaling_algebra.proofs.presentation import render_proved
from scaling_algebra.solver.demands import Infeasible, NotFound
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import REGIMES, Ray, regime
from scaling_algebra.spec.configuration import DEFAULT_ARCHITECTURE, DEFAULT_OPTIMIZER, Configuration
from scaling_algebra.spec.networks.files import as_toml, from_toml
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, TITLES, architecture
from scaling_algebra.spec.networks.printing import as_text
from scaling_algebra.spec.optimizer_reading import parse_optimizers as optimizer
from scaling_algebra.spec.optimizers import EPSILONS, OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS, parameterization

from .maps import KEPT, locate_ray

Question = Mapping[str, str]
ASKED = ("regime", "ray", "optimizer", "parameterization", "epsilon", "readout_init", "architecture", "network")
"""Entries of a question that determine a configuration."""
TUNED = ("lr", "std", "eps", "decay")
SIZES = ("base", "target", *TUNED)
"""Entries of a recipe, instead of a regime or a ray."""
COPIES = ("markdown", "latex", "json", "csv", "python", "command")
"""Texts to copy or to save: formats of documents, the equivalent Python call, and the command."""
USUAL = "muon+adamw"
"""Two optimizers that are usually combined, offered in addition to each alone."""
_FILE = "mine.toml"


PageAnswer = tuple[Document, Mapping[str, Any]]
"""A document, and further entries for the page by name; ``place`` locates the ray on the map, in one line."""


def answer(question: str) -> str:
    """Answers a question of the page; question and answer are JSON texts.

    If the question is wrong, the answer has the key ``error`` with a message of one line, and for a network of the
    user's own ``line``, the line of its text, counted from 1. If a search finds nothing, ``missing`` is true. If a
    module must be loaded first, ``needs`` is its name.
    """
    return json.dumps(answer_question(json.loads(question)))


def answer_question(question: Question) -> dict[str, Any]:
    """Answers a question of the page; question and answer are Python objects (see ``answer``)."""
    try:
        _check(question)
        if "as" in question:
            return {"text": copy_text(question, question["as"])}
        document, more = find_entry("question", question.get("ask", ""), ASKS)(question)
        return {"html": fragment([document]), "place": "", **more}
    except ModuleNotFoundError as error:
        return {"needs": error.name}
    except UsageError as error:
        return {"error": _adapt_error(error), "line": _line(question.get("network", ""), str(error))}
    except Infeasible as error:
        missing = isinstance(error, NotFound)
        return {
            "error": _adapt_error(error),
            "line": None,
            "missing": missing,
            "place": locate_ray(_configuration(question)),
        }


def _check(question: Question) -> None:
    """Checks the entries of a question.

    Raises:
        UsageError: an entry is unknown, has a wrong value, or has no effect together with the other entries.
    """
    wrong = []
    readers: Mapping[str, Callable[[Any], object]] = {"": _words, **READ}
    for word, read in readers.items():
        try:
            if not word or question.get(word):
                read(question[word] if word else question)
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("; ".join(wrong))


def _words(question: Question) -> None:
    """Checks that every entry of a question is known and has an effect for this kind of question."""
    check_names("word in a question", sorted(question), ("ask", "as", "what", *ASKED, *SIZES))
    recipe = question.get("ask") == "recipe"
    if apart := [word for word in (("regime", "ray") if recipe else SIZES) if question.get(word)]:
        beside = "sizes" if recipe else "a regime or a ray"
        raise UsageError(f"{', '.join(apart)} beside {beside}: leave out one of both")


READ: Mapping[str, Callable[[Any], object]] = {
    "regime": regime,
    "ray": Ray.parse,
    "optimizer": optimizer,
    "parameterization": parameterization,
    "epsilon": partial(find_entry, "epsilon regime", registry=EPSILONS),
    "readout_init": partial(find_entry, "readout init", registry=dict.fromkeys(READOUTS)),
    "architecture": architecture,
}
"""Parsers of entries whose values are names, or a ray."""


def _adapt_error(error: Exception) -> str:
    """Rewrites an error message for the page, without the clauses about options or commands of the command line."""
    text = re.sub(r" \(([^()]*)\)", lambda inner: f" ({_clauses(inner[1])})".replace(" ()", ""), str(error))
    kept = _clauses(re.sub(r"[;.] [^;.]*scalecalc[^;.]*", "", text)) or text
    return re.sub(r"--([a-z]+)(?:-([a-z]+))?", lambda option: " ".join(filter(None, option.groups())), kept)


def _clauses(text: str) -> str:
    """Removes from a message the clauses that mention an option or a command."""
    return "; ".join(x for x in re.split(r"(?<=[^;]); ", text) if not re.search(r"--\w|scalecalc", x))


def copy_text(question: Question, form: str) -> str:
    """Returns an answer as text to copy.

    Raises:
        UsageError: there is no such form, or the question is wrong.
    """
    plain = {key: value for key, value in question.items() if key != "as"}
    if form == "python":
        return _python(plain)
    if form == "command":
        return _command(plain)
    return render(find_entry("question", plain.get("ask", ""), ASKS)(plain)[0], form)


# questions -----------------------------------------------------------------------------------------------------------


def _configuration(question: Question) -> Configuration:
    where: dict[str, Any] = {key: question[key] for key in ("epsilon", "readout_init") if question.get(key)}
    where |= {"ray": question.get("ray") or None} | _network(question)
    named_: dict[str, Any] = {key: question[key] for key in ("optimizer", "parameterization") if question.get(key)}
    return Configuration.of(question.get("regime") or None, **named_, **where)


def _network(question: Question) -> dict[str, Network]:
    if "network" in question:  # an empty text is an error, not the default network
        return {"network": from_toml(question["network"], _FILE, "mine")}
    if name := question.get("architecture"):
        return {"network": architecture(name)}
    return {}


def _derive(question: Question) -> PageAnswer:
    configuration = _configuration(question)
    return derive(configuration).document(), {"place": locate_ray(configuration)}


def _explain(question: Question) -> PageAnswer:
    return explain(question.get("what", ""), _configuration(question)).document(), {}


def _prove(question: Question) -> PageAnswer:
    from scaling_algebra.proofs.prover import prove

    configuration = _configuration(question)
    proof = prove(configuration)
    try:
        derived = replace(derive(configuration), unique=proof.unique)
    except Infeasible:
        derived = None
    return render_proved(proof, None if derived is None else derived.document()), {"unique": proof.unique}


def _settle(question: Question) -> PageAnswer:
    """Derives a parameterization for the page; if the search finds none, tries to prove that there is none."""
    from scaling_algebra.proofs.prover import prove_missing

    try:
        return _derive(question)
    except NotFound as error:
        raise Infeasible(prove_missing(error)[1]) from None


def _recipe(question: Question) -> PageAnswer:
    return _recipe_of(question).document(), {}


def _recipe_of(question: Question) -> Any:
    from scaling_algebra.recipes.files import values
    from scaling_algebra.recipes.recipe import recipe

    tuned = {name: values(name, question[name].replace(",", " ").split()) for name in TUNED if question.get(name)}
    names = ("optimizer", "parameterization", "epsilon", "readout_init")
    where: dict[str, Any] = {"optimizer": DEFAULT_OPTIMIZER, **{k: question[k] for k in names if question.get(k)}}
    where |= {**_network(question), **tuned}
    return recipe(question.get("base", ""), question.get("target", ""), **where)


def _read(question: Question) -> PageAnswer:
    """Reads a network, and returns its equations and the quantities that can be explained."""
    network = _network(question).get("network", ARCHITECTURES[DEFAULT_ARCHITECTURE])
    return Document((), {}), {"equations": as_text(network), "quantities": list(list_quantities(network))}


ASKS: Mapping[str, Callable[[Question], PageAnswer]] = {
    "derive": _derive,
    "explain": _explain,
    "prove": _prove,
    "settle": _settle,
    "recipe": _recipe,
    "read": _read,
}
"""The function that answers each kind of question."""


# texts ---------------------------------------------------------------------------------------------------------------


def _list_arguments(question: Question) -> Iterator[tuple[str, str]]:
    """Yields the arguments of a question that are not empty."""
    keys = (*SIZES, *ASKED) if question["ask"] == "recipe" else ASKED
    yield from ((key, question[key]) for key in keys if question.get(key))


def _python(question: Question) -> str:
    """Returns the Python call that gives the same answer; for a recipe, its numbers as a Python dict."""
    if question["ask"] == "recipe":
        from scaling_algebra.recipes.presentation import as_python

        return as_python(_recipe_of(question))
    given = dict(_list_arguments(question))
    from_file = given.pop("network", None) is not None
    arguments = [repr(question["what"])] if question["ask"] == "explain" else []
    arguments += [f"{key}={value!r}" for key, value in given.items()]
    arguments += [f"network=read_network({_FILE!r})"] if from_file else []
    names = f"{question['ask']}, read_network" if from_file else question["ask"]
    return f"from scaling_algebra import {names}\n\nprint({question['ask']}({', '.join(arguments)}))"


def _command(question: Question) -> str:
    """Returns the command line that gives the same answer."""
    ask = question["ask"]
    words = ["scalecalc", "derive" if ask == "prove" else ask]
    words += [question.get("what", "")] if ask == "explain" else []
    for key, value in _list_arguments(question):
        texts = value.replace(",", " ").split() if key in TUNED else [_FILE if key == "network" else value]
        for text in texts:
            words += [f"--{key.replace('_', '-')}", text]
    return shlex.join([*words, "--prove"] if ask == "prove" else words)


def _line(text: str, message: str) -> int | None:
    """Finds the line of a network's text that a message is about; None if the message names none."""
    if match := re.search(r"at line (\d+)", message):
        return int(match[1])
    if not text:
        return None
    if match := re.search(r"equation (\d+)", message):
        equations = str(files.parse_toml(text)["equations"]).removeprefix("\n")
        before, _, rest = text.partition(equations)
        return before.count("\n") + int(match[1]) if rest or text.endswith(equations) else None
    reason = message.partition(": ")[2]
    lines = [
        n for n, line in enumerate(text.splitlines(), 1) if (m := re.match(r"\w+", line)) and reason.startswith(m[0])
    ]
    return lines[0] if lines else None


def choices() -> dict[str, Any]:
    """Returns the names that the page's form offers: architectures, optimizers, parameterizations and so on."""
    example = replace(ARCHITECTURES["mlp"], name="mine", title="mine")
    return {
        "regimes": {name: ",".join(f"{k}={v}" for k, v in ray.rates.items()) for name, ray in REGIMES.items()},
        "optimizers": {name: name for name in (*OPTIMIZERS, USUAL)},
        "parameterizations": {name: p.title for name, p in PARAMETERIZATIONS.items()},
        "derived": [name for name, p in PARAMETERIZATIONS.items() if p.derived],
        "epsilons": list(EPSILONS),
        "readouts": list(READOUTS),
        "architectures": dict(TITLES),  # including whole layers, for which the worker may take a minute
        "quantities": list(list_quantities(ARCHITECTURES[DEFAULT_ARCHITECTURE])),
        "maps": ["-".join(x) for x in KEPT],
        "example": as_toml(example),
        "copies": list(COPIES),
    }
