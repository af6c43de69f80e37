"""The page in a browser, served from this machine: it answers as the command line, and asks nothing of others."""

import functools
import http.server
import json
import re
import shlex
import threading
from urllib.parse import urlencode

import pytest

from scaling_algebra.errors import UsageError
from scaling_algebra.page import assembly
from scaling_algebra.page.questions import choices, copy_text

from ..shared import scalecalc
from .chrome import BROWSER, Chrome

pytest.importorskip("websocket", reason="needs websocket-client")
FIRST, RAY = 3, 90
"""Seconds: until a regime shows; for a ray, which takes 5 on a machine that has nothing else to do."""
SAID = "[...{}.querySelectorAll('th, td, li')].map(x => x.textContent)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def served(request, tmp_path_factory):
    """The address of the page; its assets are kept between runs."""
    if BROWSER is None:
        pytest.skip("no chromium or chrome on PATH")
    folder = tmp_path_factory.mktemp("page") / "site"
    try:
        assembly.assemble(folder, request.config.cache.mkdir("page-assets"))
    except UsageError as error:
        if "cannot download" not in str(error):
            raise
        pytest.skip(f"the assets of the page cannot be had: {error}")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def page(served, tmp_path_factory):
    """A tab with the page, loaded; ``first`` is how long a regime took."""
    tab = Chrome(tmp_path_factory.mktemp("profile"))
    try:
        tab.open(served)
        tab.first = tab.until("document.querySelector('#answer')?.dataset.state === 'shown'")
        tab.early = tab.run("document.body.dataset.engine")
        tab.until("document.body.dataset.engine === 'ready'", 120)
        yield tab
    finally:
        tab.close()


def ask(page, question, seconds=RAY):
    """Follows the link that holds a question."""
    words = {k: v for k, v in question.items() if k not in ("ask", "regime", "what")}
    grow = question.get("regime", "sizes" if question["ask"] == "recipe" else "ray")
    if "network" in words:
        words["architecture"] = "own"
    page.run(
        f"document.querySelector('#answer').dataset.state = ''; location.hash = '{urlencode({'grow': grow, **words})}'"
    )
    return page.until("['shown', 'error'].includes(document.querySelector('#answer').dataset.state)", seconds)


def copy(page, form):
    """The text that a button of the answer copies."""
    button = f"document.querySelector('#tools [data-form={form}]')"
    page.run(f"delete {button}.dataset.copied; {button}.click()")
    page.until(f"{button}.dataset.copied !== undefined")
    return page.run(f"{button}.dataset.copied")


def printed(question, form):
    found = scalecalc(*shlex.split(copy_text(question, "command"))[1:], "--format", form)
    return found.stdout.removesuffix("\n")


def same(page, question, place):
    """Every cell and point that the command line prints stands on the page, in order; and no more of them."""
    html = json.dumps(re.sub("(?s)<style>.*?</style>", "", printed(question, "html")))
    expected = page.run(SAID.format(f"new DOMParser().parseFromString({html}, 'text/html')"))
    assert expected and page.run(SAID.format(f"document.querySelector('{place}')")) == expected


def test_a_regime_shows_before_python_is_loaded(page):
    assert page.first < FIRST and page.early == "loading"
    assert page.run("document.querySelector('#answer').dataset.key") == assembly.key(assembly.FIRST)


def test_a_regime_is_that_of_the_command_line(page):
    question = {"ask": "derive", "regime": "II", "optimizer": "sgd", "parameterization": "mup"}
    assert ask(page, question) < FIRST
    same(page, question, "#document")
    for form in choices()["copies"]:
        assert copy(page, form) == copy_text(question, form)


def test_a_ray_is_that_of_the_command_line(page):
    question = {"ask": "derive", "ray": "N=1,N_e=1/2,M=3/2", "optimizer": "adam", "parameterization": "mup"}
    ask(page, question)
    same(page, question, "#document")
    assert page.run("document.querySelector('#place').textContent").startswith("On the map: cell B")
    assert copy(page, "json") == printed(question, "json")


def test_what_is_not_found_is_proved_as_on_the_command_line(page):
    """Where proofs do not reach, which needs no solver here; a proof itself: `test_questions.py`."""
    ask(page, {"ask": "derive", "ray": "N=1,N_e=1/2,M=3/2", "optimizer": "signsgd", "parameterization": "mssp"})
    page.until(
        "document.querySelector('#error').textContent.includes('(UNDECIDED: the search found none, which is no proof')",
        RAY,
    )


def test_an_old_answer_is_grey_until_the_new_one_is_there(page):
    ask(page, {"ask": "derive", "regime": "II", "optimizer": "sgd", "parameterization": "mup"})
    opacity = "['answer-title', 'document', 'tools'].map(x => getComputedStyle(document.getElementById(x)).opacity)"
    page.run("""(() => { const usual = Worker.prototype.postMessage; window.held = [];
        window.release = () => { Worker.prototype.postMessage = usual; window.held.forEach(send => send()); };
        Worker.prototype.postMessage = function (...given) { window.held.push(() => usual.apply(this, given)); };
        })()""")
    page.run("location.hash = 'grow=ray&ray=N=1,N_e=1/5,M=6/5'")
    page.until("window.held.length > 0 && document.querySelector('#answer').dataset.state === 'busy'")
    page.until(f"String({opacity}) === '0.45,0.45,0.45'")
    page.run("window.release()")
    page.until("document.querySelector('#answer').dataset.state === 'shown'", RAY)
    page.until(f"String({opacity}) === '1,1,1'")


def test_the_point_moves_by_keys_and_the_link_follows(page):
    ask(page, {"ask": "derive", "ray": "N=1,N_e=1/2,M=3/2", "optimizer": "sgd", "parameterization": "mup"})
    page.until("document.querySelector('#handle')")
    page.run("document.querySelector('#handle').focus()")
    page.run("document.querySelector('#answer').dataset.state = ''")
    page.press("ArrowRight", 39)
    page.until("document.querySelector('#answer').dataset.state === 'shown'", RAY)
    assert page.run("document.querySelector('#ray').value") == "N=1,N_e=5/8,M=3/2"
    assert "N_e%3D5%2F8" in page.run("location.hash")
    at = page.run("(({x, y, width, height}) => [x + width / 2, y + height / 2])"
                  "(document.querySelector('#handle .halo').getBoundingClientRect())")  # fmt: skip
    page.run("document.querySelector('#answer').dataset.state = ''")
    for kind, x in (("mousePressed", at[0]), ("mouseMoved", at[0] + 60), ("mouseReleased", at[0] + 60)):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=at[1], button="left", buttons=1, clickCount=1)
    page.until("document.querySelector('#answer').dataset.state === 'shown'", RAY)
    assert page.run("document.querySelector('#ray').value").startswith("N=1,N_e=1")


def test_of_quick_changes_the_last_is_answered_and_the_others_are_dropped(page):
    question = {"grow": "ray", "optimizer": "sgd", "parameterization": "mup"}
    rays = [f"N=1,N_e=1/3,M={k}/21" for k in range(1, 21)]
    page.run("""(() => { window.sent = 0; const usual = Worker.prototype.postMessage;
        Worker.prototype.postMessage = function (...given) { window.sent++; return usual.apply(this, given); };
        document.querySelector('#answer').dataset.state = ''; })()""")
    for ray in rays:
        page.run(f"location.hash = '{urlencode({**question, 'ray': ray})}'")
    last = f"document.querySelector('#answer').dataset.key?.includes({json.dumps(rays[-1])})"
    page.until(f"document.querySelector('#answer').dataset.state === 'shown' && {last}", RAY)
    assert page.run("window.sent") < 5


def test_the_reason_of_a_number_is_that_of_the_command_line(page):
    question = {"ask": "derive", "regime": "III", "optimizer": "sgd", "parameterization": "mup"}
    ask(page, question)
    page.run("document.querySelector('button[aria-label^=\"router lr\"]').click()")
    page.until("document.querySelector('#more').dataset.state === 'shown'", RAY)
    same(page, {**question, "ask": "explain", "what": "router.lr"}, "#more")
    assert page.run("document.querySelector('#more h3').textContent") == "router.lr"


def test_an_error_of_a_network_stands_at_its_line(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = choices()["example"].replace("h2[b] = W2[b,a] h1[a]", "h2[b] = W2[b,a] h1[a] - h1[b]")
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    question = {"ask": "derive", "ray": "N=1", "optimizer": "adam", "parameterization": "mup", "network": text}
    ask(page, question)
    said = scalecalc(*shlex.split(copy_text(question, "command"))[1:]).stderr
    line = 1 + next(k for k, x in enumerate(text.splitlines()) if x.startswith("h2"))
    shown = page.run("document.querySelector('#network-error').textContent")
    assert shown == f"Line {line}. {said.removeprefix('scalecalc: ').rstrip()}"
    assert page.run("document.querySelector('#lines .wrong').textContent") == str(line)
    right = {**question, "network": choices()["example"]}
    (tmp_path / "mine.toml").write_text(right["network"], encoding="utf-8")
    ask(page, right)
    same(page, right, "#document")
    assert page.run("document.querySelector('#network-error').textContent") == ""


def test_a_link_with_unknown_words_says_so(page):
    """Of a value, of a word, and of a regime; the form goes on from there."""
    for link, said in (
        ("grow=II&optimizer=adamm", "no optimizer named 'adamm'; did you mean 'adam"),
        ("grow=II&optimzer=adam", "did you mean 'optimizer'"),
        ("grow=IV&optimizer=adamm", "no regime named 'IV'"),
        ("grow=IV&optimizer=adamm", "no optimizer named 'adamm'"),
        ("grow=II&ray=N%3D1", "give either a regime"),
        ("grow=II&lr=0.1", "lr beside a regime"),
        ("grow=II&optimizer=sgd&optimizer=adam", "two optimizers"),
    ):
        page.run(f"document.querySelector('#answer').dataset.state = ''; location.hash = '{link}'")
        page.until("document.querySelector('#answer').dataset.state === 'error'", RAY)
        assert said in page.run("document.querySelector('#error').textContent")
        assert "grow=IV" not in link or "grow=IV" in page.run("location.hash")
    page.run("location.hash = 'ray=N%3D1&optimizer=sgd&parameterization=mup&architecture=mlp'")
    page.until("document.body.dataset.mode === 'ray' && location.hash.includes('grow=ray')", RAY)
    question = {
        "ask": "derive",
        "ray": "N=1",
        "optimizer": "muon+adamw",
        "parameterization": "mup",
        "architecture": "mlp",
    }
    ask(page, question)
    same(page, question, "#document")
    assert copy(page, "link") == page.run("location.href") and copy(page, "csv") == copy_text(question, "csv")


def test_numbers_of_the_target_are_on_a_phone(page):
    ask(page, {"ask": "recipe", "base": "N=64,L=2", "target": "N=256,L=8", "lr": "3e-3", "parameterization": "mup"})
    page.size(390)
    right = "[...document.querySelectorAll('.values td:last-child')].map(x => x.getBoundingClientRect().right)"
    assert max(page.run(right)) <= 390
    ask(page, {"ask": "derive", "regime": "III", "optimizer": "sgd", "parameterization": "mup"})
    heads = "[...document.querySelectorAll('.powers thead th')].filter(x => x.offsetWidth).map(x => x.textContent)"
    assert page.run(heads)[:3] == ["tensor", "init std", "lr"]
    page.size(1280)


def test_a_proof_can_be_cancelled_and_is_that_of_the_command_line(page):
    question = {"ask": "derive", "regime": "II", "optimizer": "sgd", "parameterization": "mup"}
    ask(page, question)
    page.run("document.querySelector('#prove').click()")
    page.until("!document.querySelector('#busy').hidden")
    page.run("document.querySelector('#busy button').click()")
    assert page.run("document.body.dataset.engine") == "loading"
    page.until("document.body.dataset.engine === 'ready'", 120)
    page.run("document.querySelector('#prove').click()")
    page.until("document.querySelector('#more').dataset.state === 'shown'", 120)
    same(page, {**question, "ask": "prove"}, "#more")
    assert page.run("document.querySelector('#more h3').textContent").startswith("proof: unique")


def test_nothing_is_wider_than_a_phone(page):
    ask(page, {"ask": "derive", "regime": "III", "optimizer": "adam", "parameterization": "mup"})
    page.run("document.querySelector('button[aria-label^=\"expert_in lr\"]').click()")
    page.until("document.querySelector('#more').dataset.state === 'shown'", RAY)
    for width in (390, 1280):
        page.size(width)
        assert page.run("document.documentElement.scrollWidth") == width
    assert (
        page.run("[...document.querySelectorAll('input, select, textarea')].filter(x => !x.labels.length).length") == 0
    )


def test_no_request_left_the_server_and_nothing_failed(page, served):
    """After a proof, which needs the solver: the worker's requests are among these."""
    ask(page, {"ask": "derive", "regime": "I", "optimizer": "sgd", "parameterization": "mup"})
    page.run("document.querySelector('#more').dataset.state = ''; document.querySelector('#prove').click()")
    page.until("document.querySelector('#more').dataset.state === 'shown'", 120)
    assert any("pyodide.asm.wasm" in x for x in page.requests) and any("z3_solver" in x for x in page.requests)
    assert [x for x in page.requests if not x.removeprefix("blob:").startswith(served) and x != "about:blank"] == []
    assert page.faults == []


def test_the_worker_is_under_the_policy_of_the_page(page):
    """After the faults are looked at: this makes one."""
    reach = "fetch('data:,x').then(() => 'sent', () => 'refused')"
    assert [page.run(reach, worker) for worker in (None, page.workers[-1])] == ["refused", "refused"]
