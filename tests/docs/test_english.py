"""Rules of the prose in the code that a program can check; CONTRIBUTING.md has the whole list.

They hold in every folder that ``english.toml`` does not list as pending. A folder leaves that list when its sentences
have been rewritten; none may be added.
"""

import ast
import re
import tomllib

import pytest

from .pages import ROOT

WORDS = tomllib.loads((ROOT / "tests" / "docs" / "english.toml").read_text(encoding="utf-8"))
PENDING, VERBS, PARTICIPLES = (frozenset(WORDS[key].split()) for key in ("pending", "verbs", "participles"))
PRODUCT = ("scaling_algebra", "tables", "verify")

ASKING = {"whether", "how", "what", "which", "where", "context", "same", "true", "raises", "law:"}
PRIVATE = ("letter", "letters", "rung", "rungs", "culprit")
"""Words of this code for what the field calls an index, a budget, the tensor to blame."""


def is_verb(word):
    """Whether a word is one of `VERBS`, in the imperative or the third person."""
    word = word.lower().rstrip(",:;")
    return any(
        x in VERBS for x in (word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y")
    )


def lacks_verb(summary):
    """Whether the summary line of a function begins with neither a verb nor a question word."""
    words = summary.split()
    return not words or not (is_verb(words[0]) or words[0].lower() in ASKING)


def has_crowded_attributes(text):
    """Whether one line of a list of arguments or attributes describes more than one of them."""
    section = re.search(r"^(Args|Attributes):\n((?: +.*\n?|\n)*)", text, re.M)
    return bool(section and re.search(r"[.;] [a-z_]\w*(?:, [a-z_]\w*)*: (?!`)", section[2]))


def has_private_word(text):
    """Returns whether a sentence contains a word of ``PRIVATE``, which only this code uses."""
    prose = re.sub(r"`+[^`]*`+", "", text)
    return any(re.search(rf"\b{word}\b", prose, re.I) for word in PRIVATE)


def is_bare_participle(name):
    """Whether the name of a function says neither what goes in nor what comes out."""
    bare = name.strip("_")
    return "_" not in bare and (
        bare in PARTICIPLES or (bare.endswith("ed") and bare not in ("embed", "seed", "speed", "need"))
    )


def complaints(source):
    """Yields a line for every rule that a module breaks."""
    tree = ast.parse(source)
    for node in [tree, *ast.walk(tree)]:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text, name = ast.get_docstring(node) or "", getattr(node, "name", "module")
        if has_crowded_attributes(text):
            yield f"{name}: one attribute or argument to a line"
        if has_private_word(text):
            yield f"{name}: use the field's word for {PRIVATE}"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
        if text and not decorators & {"property", "cached_property"} and lacks_verb(text.split("\n")[0]):
            yield f"{name}: begin with a verb: {text.splitlines()[0]}"
        if is_bare_participle(name) and not decorators & {"property", "cached_property"}:
            yield f"{name}: a name of a verb and its object"


def rooms():
    """Every folder of the product with Python in it, as text."""
    return sorted({p.parent.relative_to(ROOT).as_posix() for top in PRODUCT for p in (ROOT / top).rglob("*.py")})


@pytest.mark.parametrize("room", rooms())
def test_sentences_follow_the_rules(room):
    found = [
        f"{path.name}: {line}"
        for path in sorted((ROOT / room).glob("*.py"))
        for line in complaints(path.read_text(encoding="utf-8"))
    ]
    if room in PENDING:
        assert found, f"{room} is clean: take it off PENDING"
    else:
        assert not found, "\n".join(found)


def test_rooms_that_are_pending_exist():
    assert set(rooms()) >= PENDING


PLANTED = {
    "one attribute": '''class A:\n    """A thing.\n\n    Attributes:\n        x: a size. y: another one.\n    """\n''',
    "begin with a verb": '''def size(x):\n    """The size of what is left, of which the letter is open."""\n''',
    "field's word": '''def find_index(x):\n    """Returns the letter of a signal."""\n''',
    "verb and its object": '''def settled(x):\n    """Returns the demands that hold."""\n''',
}


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_sentence_of_each_kind_is_seen(rule):
    """Negative control: each planted fault breaks exactly its own rule at least; good prose breaks none."""
    assert any(rule in line for line in complaints(PLANTED[rule]))
    good = '''class A:\n    """A thing.\n\n    Attributes:\n        x: a size.\n        y: another one.\n    """\n\n
def find_index(x):\n    """Returns the index of a signal (see `letter`)."""\n'''
    assert not list(complaints(good))
