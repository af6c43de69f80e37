"""Bad input, made at random from a seed: for every verb, option, file and the Python API.

A case is wrong by construction (``Bad``: exit code 2, one line), or a good file with random damage (``Damaged``: any
answer, but no fault of the program). New kinds of input belong into ``KINDS`` and ``VERBS``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOSTILE = ["\x1b[2J", "a\nb", "../../x", "<script>alert(1)</script>", "%s%n", "{}", "$(id)", "'; --", "\u202e", "日本"]
DIGITS = ["²", "\u0661", "1", "0x10", "1_000", "1e3", "1e999", "nan", "inf", "-inf", "True", "None", "1/0", "9" * 30]
NETWORK = """name = "mine"
axes = { a = "N", b = "N", x = "D" }
equations = \"\"\"
h1[a] = W1[a,x] data[x]
h2[a] = W2[a,b] h1[b]
f     = W3[a] h2[a]
\"\"\"
"""
ASSUMPTIONS = """grows = "d"
assume = ["n**(-1/2) <= sigma", "sigma*log(d) << d**(-1/2)", "n <= d**kappa"]
[[define]]
name = "T"
is = "n/sigma**2"
"""
CAMPAIGN = """title = "mine"
steps = 2
largest = 1e5
[[run]]
regimes = ["I", "III"]
optimizers = ["sgd"]
parameterizations = ["sp"]
sizes = [8, 12, 18]
seeds = 4
"""
CONFIGURATION = {
    "architecture": "moe",
    "regime": "I",
    "ray": {"N": "1", "N_e": "1", "M": "0", "K": "0", "L": "0"},
    "optimizer": "sgd",
    "epsilon": None,
    "parameterization": "sp",
    "readout_init": "maximal",
    "given": {},
}
RUN = {
    "configuration": CONFIGURATION,
    "steps": 2,
    "sizes": [8, 12, 18],
    "seeds": [4, 4, 4],
    "testbed": "moe",
    "dtype": "float64",
    "products": [],
    "looks": 1,
    "together": 32,
}
PLAN = {"format": 1, "command": "scalecalc verify", "claims": [], "runs": [RUN]}


@dataclass(frozen=True)
class Case:
    """Arguments of the command line; what stands in the environment; is the input wrong for certain?"""

    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    wrong: bool = True

    def __str__(self) -> str:
        shown = [x if len(x) < 80 else f"{x[:40]}...({len(x)} characters)" for x in self.arguments]
        return f"{dict(self.environment)} {shown}"


class Maker:
    """Makes cases from one seed; files go into a folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw, self.folder, self.made = random.Random(seed), folder, 0

    def cases(self, count: int) -> Iterator[Case]:
        for _ in range(count):
            yield self.draw.choice(RECIPES)(self)

    # values ------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """What is no name, number or formula of anything."""
        return self.draw.choice(
            [
                self.draw.choice(HOSTILE),
                "".join(chr(self.draw.randint(33, 0x24F)) for _ in range(self.draw.randint(3, 12))) + "!",
                "q" * self.draw.choice([50, 500, 20_000]),
                "((" * self.draw.choice([1, 100, 5000]),
            ]
        )

    def count(self, least: int, most: int) -> str:
        over = [str(least - 1), str(most + 1), str(-(10**9)), "9" * self.draw.randint(15, 6000)]
        wrong = [x for x in DIGITS if x != "1"]
        return self.draw.choice([*over, *wrong, "", " ", "1.5", "1,2", "1e2", self.text()])

    def rate(self) -> str:
        wrong = [x for x in DIGITS if x not in ("1", "1e3")]
        return self.draw.choice([*wrong, "-1", "-1/2", "1//2", "1/", "/2", "", "1 2", "1/2/3", "1000001", "1/1000001"])

    def ray(self) -> str:
        axes = [f"N={self.rate()},N_e=1,M=1", f"N=1,N_e={self.rate()},M=1", f"N=1,N_e=1,M={self.rate()}"]
        wrong = ["N", "=", "N=0,N_e=0,M=0", "N=1,N=1,N_e=1,M=1", "N=1,N_e=1,M=1,K=2", "N=1,N_e=1,M=1,L=-1"]
        wrong += ["Q=1", "n=1,N_e=1,M=1", "N=1,K=1", "N:1", "", ",,,", "N=1;N_e=1", "N=1," * 3000, self.text()]
        return self.draw.choice([*axes, *wrong])

    def sizes(self) -> str:
        wrong = ["8,16", "16,8,4", "8,8,8", "8,,16", "1,2,3", "0,8,16", "-8,8,16", "8;12;18", "8.5,12,18", "8,12,²"]
        wrong += ["8,12,1e3", "8,12," + "9" * 40, "8,12,x", ",", " ", "8,12,99999999999", "10000,20000,3000000"]
        return self.draw.choice([*wrong, ",".join(map(str, range(2, 5000))), self.text()])

    def widths(self) -> str:
        fits = ("8,16", "1,2,3")
        return next(sizes for sizes in iter(self.sizes, None) if sizes not in fits)

    def amount(self) -> str:
        wrong = ["soon", "-5s", "0s", "0", "9" * 400 + "s", "1e9s", "5 parsecs", "nan", "inf", "", "²s", "1e400", "5ss"]
        return self.draw.choice([*wrong, "99999999999h", "99999999TiB5", self.text()])

    def grid(self) -> str:
        wrong = ["0,1e9", "1", "a,b", "nan,1", "0,inf", "-4,-10", "0,1,0", "0,9,-1", "-1,1e9,1", "0,1", "1,2,3,4"]
        return self.draw.choice([*wrong, "-1e6,1e6,1e-6", "²,³", "", "0,5000,10", self.text()])

    def share(self) -> str:
        return self.draw.choice(["0", "2", "-1", "nan", "1/0", "101%", "%", "", "1e-9999", "²", "9" * 50, self.text()])

    def claim(self) -> str:
        wrong = ["h3", "h3@x=0", "h3@²=0", "h3@2=1e999", "=0", "nope@2=0", "h3@99=0", "<h3@0@2=0", "h3@2=", "h3@-1=0"]
        wrong += ["h3@2=1/0", "h3@2=nan", "h3@2=²", "<h3@0, h3@9999>@2=0", "<h3@0, h3@9>@2=0", f"h3@{'9' * 5000}=0"]
        return self.draw.choice([*wrong, f"h3@2={'9' * 5000}", self.text()])

    def given(self) -> str:
        wrong = ["router", "router.init", "router.init=", "nope.init=N", "router.lr=0", "=N"]
        wrong += ["router.init=N^²", "router.init=N^1/0", "router.init=N^" + "9" * 5000, "router.init=Q", "router.x=N"]
        wrong += ["router.init=N^1e999", "router.init=L", "router.init=" + "N " * 20_000, "aggregation=0"]
        return self.draw.choice([*wrong, self.text()])

    def quantity(self) -> str:
        wrong = ["nope", "", "h3.A9", "<h3>", "<h3, nope>", "<h3@x, h3>", "<h3@²,h3>", "<h3@99999,h3>", "h3@1", "<,>"]
        return self.draw.choice([*wrong, self.text()])

    def nothing(self) -> str:
        """No quantity at any step."""
        return next(name for name in iter(self.quantity, None) if name != "h3@1")

    def what(self) -> str:
        wrong = ["nope", "", "h3@²", "h3@99999", "h3@-1", "router", "router.x", "nope.lr", "h3@", "@1", "<h3@x, h3>@1"]
        return self.draw.choice([*wrong, f"h3@{'9' * 5000}", self.text()])

    def base(self) -> str:
        return self.draw.choice(["N", "N=²", "N=0", "N=-4", "Q=4", "N=" + "9" * 40, "N=1.5", "=", "N=x", self.text()])

    def tuned(self) -> str:
        wrong = [x for x in DIGITS if x not in ("1", "1e3")]
        return self.draw.choice([*wrong, "0", "-1", "", "router=", "nope=1", "=", "1,2", "9" * 5000, self.text()])

    def start(self) -> str:
        """Sizes that are none, as text or in a file."""
        return self.draw.choice([self.base(), self.read()])

    def setting(self) -> str:
        return self.draw.choice(["batch", "batch=²", "batch=0", "batch=-1", "batch=x", "nope=1", "batch=" + "9" * 30])

    def sum(self) -> str:
        wrong = ["", " ", "N - 1", "-N", "N**N", "N**(1/0)", "f(N)", "log(2)", "1/(N + n)", "(N + n)**(1/2)", "0*N + n"]
        wrong += [
            "N.x",
            "'N'",
            "N if 1 else n",
            "[N]",
            "lambda: N",
            "N,n",
            "N = n",
            "N n",
            "1_0*N",
            "0x1*N",
            "N²",
            "Q + N/n",
        ]
        wrong += [
            "(2**300)**300*N",
            "N**" * 500 + "2",
            "*".join(["(N+n)"] * 30),
            "N+" * 900 + "N",
            "N + N/n",
            "9" * 5000,
        ]
        return self.draw.choice([*wrong, self.text()])

    def names(self) -> str:
        return self.draw.choice(["2", "N n", "N,,n", "N;n", "N²", "N,N", "Q", "N,Q", "n" * 3000, self.text()])

    def related(self) -> str:
        wrong = ["N", "N <= n + 1", "N < n", "N == n == C", "=", "N =", "C = N + n", "n = n", "N = N - 1", "x" * 3000]
        return self.draw.choice([*wrong, self.text()])

    def values(self) -> str:
        wrong = [
            "p",
            "p=",
            "=1",
            "p=-1",
            "p=0",
            "p=1/0",
            "p=x",
            "p=1,p=2",
            "q=1",
            "p=nan",
            "p=1e999",
            "p=²",
            "p=" + "9" * 5000,
        ]
        return self.draw.choice([*wrong, self.text()])

    def rule(self) -> str:
        """Names of invariants that are none."""
        wrong = ["", ",", "sde,", "sde timescale", "loss", "sde;mup", "sde," * 5000 + "x", self.text()]
        return self.draw.choice(wrong)

    def change(self) -> str:
        wrong = ["", "1", "1:2:3", "0:1", "1:0", "-1:1", "nan:1", "1:inf", "²:1", "1e999:1", ":", "1:", "a:b"]
        return self.draw.choice([*wrong, "9" * 400 + ":1", "1e-29:1e29", self.text()])

    def before(self) -> str:
        wrong = ["lr", "lr=", "=1", "lr=x", "lr=0", "lr=-1", "lr=inf", "beta1=1", "beta2=2", "x=1", "lr=1,lr=1", ","]
        return self.draw.choice([*wrong, "lr=" + "9" * 5000, "lr=1;eps=1", "lr=²", self.text()])

    def growth(self) -> str:
        wrong = ["K", "=", "K=", "=d", "Q=d", "d=K", "K=K", "K=Q", "K=d**(k*k)", "K=d+M", "K=-d", "K=d**(1/0)"]
        return self.draw.choice([*wrong, "K=d**" + "9" * 5000, "K=" + "(" * 5000, "K=__import__('os')", self.text()])

    # files -------------------------------------------------------------------------------------------------------

    def file(self, content: bytes | str, ending: str = ".toml") -> str:
        self.made += 1
        path = self.folder / f"{self.made}{ending}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def read(self) -> str:
        """A path that no file with a network or a campaign is at."""
        deep = "x = " + "[" * 50_000 + "]" * 50_000
        many = "\n".join(f"k{i} = {i}" for i in range(3000))
        contents = ["", "x", "\x00" * 100, b"\xff\xfe\x00", deep, many, "[[run]]", "run = 1", "name = 3", "[" * 5000]
        contents += ["x = " + "9" * 6000, "equations = 1", 'name = "a"\naxes = {a = "N"}\nequations = "h[a] = "']
        contents += [b"\xef\xbb\xbf" + b"x", "a" * 2_000_000, 'axes = {a="N"}\nequations = """' + "f(" * 5000 + '"""']
        there = self.file(self.draw.choice(contents))
        missing = [str(self.folder / "none.toml"), str(self.folder), "", "n" * 300, "n" * 5000, "/dev/zero", "a/b\n/c"]
        return self.draw.choice([there, there, there, *missing])

    def written(self) -> str:
        """A path that no file can be written to, or whose ending names no format."""
        wrong = [
            str(self.folder),
            "",
            " ",
            str(self.folder / "none" / "x.json"),
            str(self.folder / ("n" * 300 + ".md")),
        ]
        return self.draw.choice([*wrong, str(self.folder / "x.docx"), "/proc/x.json", __file__ + "/x.md", "n" * 5000])

    def unwritable(self) -> str:
        """A path that no file can be written to."""
        return next(path for path in iter(self.written, None) if not path.endswith(".docx"))

    def place(self) -> str:
        return self.draw.choice(["", "/proc/none", f"{__file__}/x", "n" * 5000, "n" * 300, " "])

    def unpaged(self) -> str:
        """A folder that no page may be put into: what is no folder, cannot be made, or holds something else."""
        (self.folder / "full").mkdir(exist_ok=True)
        (self.folder / "full" / "mine.txt").touch()
        return self.draw.choice([self.place(), self.file("x"), str(self.folder / "full")])

    def stored(self) -> str:
        """A folder with a plan that is none."""
        plan, run = json.loads(json.dumps(PLAN)), {}
        run = plan["runs"][0]
        target, key = self.draw.choice(
            [(run, k) for k in RUN]
            + [(run["configuration"], k) for k in ("ray", "optimizer", "parameterization", "readout_init", "regime")]
            + [(plan, "runs"), (plan, "claims"), (plan, "format")]
        )
        odd: list[Any] = [True, 1.5, {"a": 1}, [1], [[]], "x" * 3000, -1, 10**12, 1e300, [None], [-1, -2, -3]]
        target[key] = self.draw.choice([x for x in odd if not (key == "regime" and x is None)])
        twice = {**PLAN, "runs": [RUN, RUN]}
        texts = [json.dumps(plan)] * 6
        texts += ["", "[", "1", "null", "[]", "{}", '{"runs": []}', json.dumps(twice), "[" * 100_000, '{"runs": [1]}']
        texts += [json.dumps({**PLAN, "format": 2}), json.dumps({**PLAN, "format": "1"}), "9" * 5000]
        folder = self.folder / f"plan{self.made}"
        self.made += 1
        folder.mkdir()
        (folder / "plan.json").write_text(self.draw.choice(texts), encoding="utf-8")
        return self.draw.choice([str(folder)] * 6 + [str(self.folder / "none"), __file__, "", "n" * 5000])

    def campaign(self) -> str:
        """A campaign with one key that cannot be."""
        bad = {
            "steps": ["-1", "1001", "true", "1.5", "'2'", "[]", "nan"],
            "sizes": [
                "[]",
                "[8]",
                "8",
                "[true, 9, 10]",
                "[8, 8, 8]",
                "[18, 12, 8]",
                "[8.5, 9, 10]",
                "['8', '9', '10']",
            ],
            "seeds": ["0", "-4", "true", "4.0", "1000001", "[4, 4]", "'4'", "9" * 30],
            "together": ["0", "3", "true", "-8", "'x'", "1.5"],
            "largest": ["0", "-1.0", "nan", "inf", "'x'", "true"],
            "work": ["0", "nan", "-inf", "[]"],
            "dtype": ["'float8'", "64", "true"],
            "regimes": ["[]", "'III'", "[1]", "['IV']", "[true]", "['I', 'I']", "['I', 'i']", "[[['I']]]"],
            "rays": ["[]", "['N']", "[1]", "['N=1e999']", "[{N = 1.5}]", "[{N = true}]"],
            "optimizers": ["[]", "['adm']", "'sgd'", "[1]", "['sgd', 'sgd']"],
            "parameterizations": ["[]", "['mupp']", "[2]"],
            "architectures": ["[]", "['nope']", "'moe'"],
            "readout_init": ["'big'", "1"],
            "epsilon": ["'huge'", "'derived'", "0"],
            "nope": ["1"],
        }
        key = self.draw.choice(list(bad))
        lines = [x for x in CAMPAIGN.splitlines() if not x.startswith(f"{key} ")]
        return self.file("\n".join([*lines, f"{key} = {self.draw.choice(bad[key])}"]))

    def log(self) -> str:
        """A CSV file of logged sizes that cannot be used."""
        lines = ["quantity,n,seed,value,step", *(f"h1,{n},{k},1.5,1" for n in (16, 32, 64) for k in range(4))]
        column, good = self.draw.choice([("n", 16), ("value", 1.5), ("step", 1)])
        wrong = ["x", "nan", "inf", "1e999", "²", "1_0", "\u0661", "1,5", "--1", "0x1", "\x00", "1/2", "9" * 5000]
        wrong += [] if column == "value" else ["-1", "1e300"]
        changed = lines[0].replace(column, self.draw.choice(["", "nope", "seed", column.upper()]))
        row = [16, 9, 1.5, 1]
        row[(16, None, 1.5, 1).index(good)] = self.draw.choice(wrong)
        texts = ["\n".join([*lines, "h1," + ",".join(map(str, row))])] * 6
        texts += ["\n".join([*lines, lines[1]]), "\n".join([*lines[:-4], "h2,16,0,1,1"]), lines[0], "h1,16", '"', ""]
        texts += ["\n".join([lines[0], "h1," + "9" * 200_000])]
        texts += ["\n".join([changed, *lines[1:]])] if column != "step" else []
        missing = [str(self.folder / "none.csv"), str(self.folder), "", "n" * 5000, "/dev/zero", "a\0b"]
        return self.draw.choice([self.file(self.draw.choice(texts), ".csv")] * 6 + missing)

    def damaged(self, text: str) -> str:
        """Cut, flipped, repeated or with other characters put in."""
        content = bytearray(text.encode())
        for _ in range(self.draw.randint(1, 3)):
            at = self.draw.randrange(len(content))
            match self.draw.randrange(5):
                case 0:
                    del content[at:]
                case 1:
                    content[at] ^= 1 << self.draw.randrange(8)
                case 2:
                    content[at:at] = content[at : at + self.draw.randint(1, 30)]
                case 3:
                    content[at:at] = self.draw.choice([*HOSTILE, *DIGITS, "[", "(", '"""', "="]).encode()
                case _:
                    del content[at : at + self.draw.randint(1, 20)]
            if not content:
                break
        return content.decode("latin-1") if self.draw.random() < 0.2 else content.decode("utf-8", "replace")


WHERE = {"--regime": Maker.text, "--ray": Maker.ray, "--optimizer": Maker.text, "--epsilon": Maker.text}
NETWORK_OF = {"--architecture": Maker.text, "--network": Maker.read}
ASKED = {**WHERE, **NETWORK_OF, "--parameterization": Maker.text, "--readout-init": Maker.text, "--given": Maker.given}
EPSILON = {"--optimizer": Maker.text, "--epsilon": Maker.text, "--readout-init": Maker.text}
PRINTED = {"--format": Maker.text, "-o": Maker.written}
Kind = Callable[[Maker], str]


def counted(least: int, most: int) -> Kind:
    return lambda maker: maker.count(least, most)


VERBS: dict[str, tuple[tuple[str, ...], dict[str, Kind]]] = {
    "derive": (("--regime", "I"), {**ASKED, **PRINTED, "--gauge": Maker.text}),
    "derive --prove": (("--regime", "I", "--parameterization", "mup"), {"--smtlib": Maker.unwritable}),
    "signals": (("--regime", "I"), {**ASKED, **PRINTED, "--steps": counted(0, 1000), "--quantity": Maker.quantity}),
    "signals --every-ray": (("--regime", "I"), {"--steps": counted(0, 2), "--quantity": Maker.quantity}),
    "explain h3": (("--regime", "I", "--optimizer", "sgd"), {**ASKED, **PRINTED, "--graph": Maker.written}),
    "explain": (("--regime", "I", "--optimizer", "sgd"), {"WHAT": Maker.what}),
    "formula h3@1": (
        ("--optimizer", "sgd"),
        {**NETWORK_OF, **PRINTED, **EPSILON, "--structure": Maker.text, "--fixed": Maker.text},
    ),
    "formula": (("--optimizer", "sgd"), {"WHAT": Maker.nothing}),
    "recipe": (
        ("--base", "N=64,L=2", "--target", "N=128,L=2"),
        {
            **NETWORK_OF,
            **EPSILON,
            "--parameterization": Maker.text,
            "--gauge": Maker.text,
            "--base": Maker.start,
            "--target": Maker.start,
            "--base-hf": Maker.read,
            "--target-hf": Maker.read,
            "--lr": Maker.tuned,
            "--std": Maker.tuned,
            "--eps": Maker.tuned,
            "--decay": Maker.tuned,
            "--batch": Maker.change,
            "--tokens": Maker.change,
            "--format": Maker.text,
            "-o": Maker.unwritable,
        },
    ),
    "phases": (
        (),
        {
            **PRINTED,
            "--parameterization": Maker.text,
            "--optimizer": Maker.text,
            "--epsilon": Maker.text,
            "--plane": Maker.text,
            "--near": Maker.ray,
        },
    ),
    "theorems": (
        (),
        {
            **PRINTED,
            **NETWORK_OF,
            "--parameterization": Maker.text,
            "--optimizer": Maker.text,
            "--epsilon": Maker.text,
            "--only": Maker.text,
            "--smtlib": Maker.unwritable,
        },
    ),
    "list": ((), {**NETWORK_OF, **PRINTED}),
    "horizon": (
        (),
        {
            **PRINTED,
            "--hold": Maker.rule,
            "--optimizer": Maker.text,
            "--axes": Maker.text,
            "--batch": Maker.change,
            "--tokens": Maker.change,
            "--base": Maker.before,
        },
    ),
    "horizon --audit": ((), PRINTED),
    "feasible": ((), {"NAME": Maker.text, "FILE": Maker.read}),
    "feasible switch-cluster": (
        (),
        {**PRINTED, "--set": Maker.growth, "--drop": Maker.text, "--onset": Maker.before},
    ),
    "table": ((), {"NAME": Maker.text}),
    "table b1": ((), {**PRINTED, "--ray": Maker.ray}),
    "audit": ((), {**PRINTED, "--source": Maker.text}),
    "audit --implementations": ((), {**PRINTED, "--source": Maker.text}),
    "errata": ((), PRINTED),
    "page": (("-o", "nowhere"), {"-o": Maker.unpaged, "--assets": Maker.place}),
    "verify": (
        ("--regime", "I", "--optimizer", "sgd", "--parameterization", "sp", "--sizes", "8,12,18", "--seeds", "4"),
        {
            **ASKED,
            "--format": Maker.text,
            "-o": Maker.place,
            "--device": Maker.text,
            "--dtype": Maker.text,
            "--sizes": Maker.sizes,
            "--seeds": counted(1, 10**6),
            "--steps": counted(0, 1000),
            "--max-memory": Maker.amount,
            "--claim": Maker.claim,
            "--require": Maker.share,
        },
    ),
    "verify --regime II": ((), {"--budget": Maker.amount}),
    "verify --resume": ((), {"WHAT": Maker.stored}),
    "verify --campaign": ((), {"WHAT": Maker.campaign, "FILE": Maker.read}),
    "report": ((), {"WHAT": Maker.stored, "--require": Maker.share, "--format": Maker.text}),
    "experiment epsilon": (
        (),
        {
            **PRINTED,
            "--sizes": Maker.sizes,
            "--seeds": counted(1, 10**6),
            "--device": Maker.text,
            "--only": Maker.text,
            "--resume": Maker.place,
        },
    ),
    "transfer": (
        ("--regime", "I"),
        {
            **WHERE,
            **PRINTED,
            "--data": Maker.text,
            "--parameterization": Maker.text,
            "--readout-init": Maker.text,
            "--widths": Maker.widths,
            "--base": Maker.base,
            "--grid": Maker.grid,
            "--extend": counted(0, 1000),
            "--seeds": counted(1, 10**6),
            "--steps": counted(1, 1000),
            "--tune": counted(0, 10_000),
            "--resume": Maker.place,
            "--set": Maker.setting,
            "--device": Maker.text,
        },
    ),
    "check-model": (
        ("--family", "mixtral", "--regime", "I"),
        {
            "--family": Maker.text,
            "--regime": Maker.text,
            "--ray": Maker.ray,
            "--widths": Maker.widths,
            "--seeds": counted(1, 1000),
            "--steps": counted(2, 100),
            "--format": Maker.text,
        },
    ),
}
BALANCE = ("--min", "N", "--in", "n")
VERBS |= {
    "balance": (BALANCE, {"WHAT": Maker.sum}),
    "balance N**-p+N/n": (
        BALANCE,
        {
            **PRINTED,
            "--min": Maker.names,
            "--in": Maker.names,
            "--constraint": Maker.related,
            "--fixed": Maker.names,
            "--at": Maker.values,
            "--reach": Maker.sum,
            "--check": Maker.values,
            "--plot": Maker.written,
        },
    ),
    "law": ((), {"WHAT": Maker.text, "FILE": Maker.read}),
    "law moe-transformer": (
        ("--axis", "data"),
        {
            **PRINTED,
            "--axis": Maker.text,
            "--rate": Maker.text,
            "--count": Maker.text,
            "--choose": Maker.values,
            "--at": Maker.values,
            "--invert": Maker.values,
            "--model": Maker.read,
            "--check": Maker.values,
            "--plot": Maker.written,
        },
    ),
    "law fit": ((), {"FILE": Maker.read, "--against": Maker.text}),
}
LAW = """title = "mine"
sum = "N**-alpha + D**-beta"
minimise = ["N", "D"]
grows = ["C"]
constraints = ["C = 6*N*D"]
floor = "C**-1"
at = { alpha = 0.34 }
"""
LAUNCHERS = [("RANK", "WORLD_SIZE"), ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")]


def option(maker: Maker) -> Case:
    """One option of one verb has a value that it cannot have."""
    verb = maker.draw.choice(list(VERBS))
    usual, options = VERBS[verb]
    name = maker.draw.choice(list(options))
    value = options[name](maker)
    base = list(usual)
    drop = {"--ray": "--regime", "--network": "", "--architecture": ""}.get(name, name)
    if drop in base:
        at = base.index(drop)
        del base[at : at + 2]
    added = [value] if name.isupper() else [f"{name}={value}"] if name.startswith("--") else [name, value]
    if name.isupper() and value.startswith("-"):
        added = ["--", value]
    return Case((*verb.split(), *base, *added))


def word(maker: Maker) -> Case:
    """A verb or an option that does not exist, or what is missing."""
    verb = maker.draw.choice([v.split()[0] for v in VERBS])
    wrong = [(maker.text(),), (verb, "--" + maker.text()), (verb, "--regime"), (verb, "-x"), ("derive", "x", "y")]
    wrong += [("verify",), ("report",), ("table",), ("explain",), ("transfer",), ("derive", "--regime", "I", "I")]
    return Case(maker.draw.choice(wrong))


def fixed_width(maker: Maker) -> Case:
    """A parameterization that counts in the width, where that does not grow."""
    rates = maker.draw.choice(["N=0,N_e=1,M=1", "N=0,N_e=0,M=1", "N=0,N_e=2,M=0"])
    verb = maker.draw.choice(["derive", "signals", "explain h3"])
    return Case((*verb.split(), "--ray", rates, "--optimizer", "sgd", "--parameterization", "sp-feature"))


def launcher(maker: Maker) -> Case:
    """Variables of a launcher that make no sense."""
    mine, every = maker.draw.choice(LAUNCHERS)
    values = maker.draw.choice(
        [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "x"), ("²", "3"), ("0", "0"), ("1", "9" * 30)]
    )
    more = [(), (("SLURM_ARRAY_TASK_STEP", "0"),)] if mine.startswith("SLURM") else [()]
    usual = ("verify", *VERBS["verify"][0])
    return Case(usual, ((mine, values[0]), (every, values[1]), *maker.draw.choice(more)))


def network(maker: Maker) -> Case:
    """A network with random damage."""
    file = maker.file(maker.damaged(NETWORK))
    return Case(("list", "--network", file), wrong=False)


def law(maker: Maker) -> Case:
    """A law with random damage."""
    return Case(("law", maker.file(maker.damaged(LAW))), wrong=False)


def assumptions(maker: Maker) -> Case:
    """A set of assumptions with random damage."""
    return Case(("feasible", maker.file(maker.damaged(ASSUMPTIONS))), wrong=False)


def plan(maker: Maker) -> Case:
    """A stored plan with random damage."""
    folder = maker.folder / f"plan{maker.made}"
    maker.made += 1
    folder.mkdir()
    (folder / "plan.json").write_text(maker.damaged(json.dumps(PLAN)), encoding="utf-8")
    return Case(("report", str(folder), "-o", str(folder / "out.json")), wrong=False)


RECIPES: tuple[Callable[[Maker], Case], ...] = (
    *[option] * 14,
    word,
    fixed_width,
    launcher,
    network,
    network,
    assumptions,
    plan,
    law,
)
