"""Bad values, drawn from a seed: numbers, names, formulas and files that nothing can read as what it asks for.

New kinds of input belong into ``Maker``.
"""

from __future__ import annotations

import json
import os
import random
import tomllib
from pathlib import Path
from typing import Any

CODE = ["__import__('os').system('true')", "(lambda: 1)()", "N.__class__", "sympify('1')", "open('/etc/passwd')"]
"""What a parser that runs text would run."""
HOSTILE = ["\x1b[2J", "a\nb", "../../x", "<script>alert(1)</script>", "%s%n", "{}", "$(id)", "'; --", "\u202e", "日本"]
HOSTILE += ["\udcff", "a\udcffb", "\ufeff", "e\u0301", "-", "--", "@", "~", "*"]
DIGITS = ["²", "\u0661", "1", "0x10", "1_000", "1e3", "1e999", "nan", "inf", "-inf", "True", "None", "1/0", "9" * 30]
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GOOD, CAMPAIGN, KEYS = TABLE["good"], TABLE["campaign"], TABLE["keys"]
"""Right files, and what the keys of a campaign cannot be."""
RUN = {**TABLE["run"], "configuration": {"epsilon": None, **TABLE["run"]["configuration"]}}
PLAN = {"format": 1, "command": "scalecalc verify", "claims": [], "runs": [RUN]}


class Maker:
    """Draws bad values from one seed; files go into a folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw, self.folder, self.made = random.Random(seed), folder, 0

    def one(self, *wrong: str) -> str:
        """One of these, or what is no name, number or formula of anything."""
        return self.draw.choice([*wrong, self.text()])

    # values ------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """What is no name, number or formula of anything."""
        random_ = "".join(chr(self.draw.randint(33, 0x24F)) for _ in range(self.draw.randint(3, 12))) + "!"
        long = self.draw.choice(["q" * 50, "q" * 20_000, "((" * 100, "((" * 5000])
        return self.draw.choice([self.draw.choice(HOSTILE), self.draw.choice(CODE), random_, long])

    def count(self, least: int, most: int) -> str:
        over = [str(least - 1), str(most + 1), str(-(10**9)), "9" * self.draw.randint(15, 6000)]
        return self.one(*over, *(x for x in DIGITS if x != "1"), "", " ", "1.5", "1,2", "1e2")

    def rate(self) -> str:
        wrong = [x for x in DIGITS if x not in ("1", "1e3")]
        return self.draw.choice([*wrong, "-1", "-1/2", "1//2", "1/", "/2", "", "1 2", "1/2/3", "1000001", "1/1000001"])

    def ray(self) -> str:
        axes = [f"N={self.rate()},N_e=1,M=1", f"N=1,N_e={self.rate()},M=1", f"N=1,N_e=1,M={self.rate()}"]
        wrong = ["N", "=", "N=0,N_e=0,M=0", "N=1,N=1,N_e=1,M=1", "N=1,N_e=1,M=1,K=2", "N=1,N_e=1,M=1,L=-1"]
        return self.one(*axes, *wrong, "Q=1", "n=1,N_e=1,M=1", "N=1,K=1", "N:1", "", ",,,", "N=1;N_e=1", "N=1," * 3000)

    def sizes(self) -> str:
        wrong = ["16,8,4", "8,8,8", "8,,16", "0,8,16", "-8,8,16", "8;12;18", "8.5,12,18", "8,12,²"]
        wrong += ["8,12,1e3", "8,12," + "9" * 40, "8,12,x", ",", " ", "8,12,99999999999", "10000,20000,3000000"]
        return self.one(*wrong, ",".join(map(str, range(2, 5000))))

    def amount(self) -> str:
        wrong = ["soon", "-5s", "0s", "0", "9" * 400 + "s", "1e9s", "5 parsecs", "nan", "inf", "", "²s", "1e400", "5ss"]
        return self.one(*wrong, "99999999999h", "99999999TiB5")

    def grid(self) -> str:
        wrong = ["0,1e9", "1", "a,b", "nan,1", "0,inf", "-4,-10", "0,1,0", "0,9,-1", "-1,1e9,1", "0,1", "1,2,3,4"]
        return self.one(*wrong, "-1e6,1e6,1e-6", "²,³", "", "0,5000,10")

    def share(self) -> str:
        return self.one("0", "2", "-1", "nan", "1/0", "101%", "%", "", "1e-9999", "²", "9" * 50)

    def claim(self) -> str:
        wrong = ["h3", "h3@x=0", "h3@²=0", "h3@2=1e999", "=0", "nope@2=0", "h3@99=0", "<h3@0@2=0", "h3@2=", "h3@-1=0"]
        wrong += ["h3@2=1/0", "h3@2=nan", "h3@2=²", "<h3@0, h3@9999>@2=0", "<h3@0, h3@9>@2=0", f"h3@{'9' * 5000}=0"]
        return self.one(*wrong, f"h3@2={'9' * 5000}")

    def given(self) -> str:
        wrong = ["router", "router.init", "router.init=", "nope.init=N", "router.eps=0", "=N", "aggregation=0"]
        wrong += ["router.init=N^²", "router.init=N^1/0", "router.init=N^" + "9" * 5000, "router.init=Q", "router.x=N"]
        return self.one(*wrong, "router.init=N^1e999", "router.init=L", "router.init=" + "N " * 20_000)

    def what(self) -> str:
        wrong = ["nope", "", "h3@²", "h3@99999", "h3@-1", "router", "router.x", "nope.lr", "h3@", "@1", "<h3@x, h3>@1"]
        return self.one(*wrong, f"h3@{'9' * 5000}")

    def base(self) -> str:
        return self.one("N", "N=²", "N=0", "N=-4", "Q=4", "N=" + "9" * 40, "N=1.5", "=", "N=x")

    def tuned(self) -> str:
        wrong = [x for x in DIGITS if x not in ("1", "1e3")]
        return self.one(*wrong, "0", "-1", "", "router=", "nope=1", "=", "1,2", "9" * 5000)

    def decay(self) -> str:
        """Of a weight decay, which may be 0."""
        return self.one("-1", "", "router=", "nope=1", "*nope=1", "=", "1,2", "x", "nan", "9" * 5000)

    def setting(self) -> str:
        return self.draw.choice(["batch", "batch=²", "batch=0", "batch=-1", "batch=x", "nope=1", "batch=" + "9" * 30])

    def sum(self) -> str:
        wrong = ["", " ", "N - 1", "-N", "N**N", "N**(1/0)", "f(N)", "log(2)", "1/(N + n)", "(N + n)**(1/2)", "0*N + n"]
        wrong += ["N.x", "'N'", "N if 1 else n", "[N]", "lambda: N", "N,n", "N = n", "N n", "1_0*N", "0x1*N", "N²"]
        wrong += ["N+n#c", "N+n\\", "N;n", "N%n", "N@n", "Q + N/n", "(2**300)**300*N", "N**" * 500 + "2"]
        return self.one(*wrong, "*".join(["(N+n)"] * 30), "N+" * 900 + "N", "N + N/n", "9" * 5000, "N" * 10**6)

    def names(self) -> str:
        return self.one("2", "N n", "N,,n", "N;n", "N²", "N,N", "Q", "N,Q", "n" * 3000)

    def related(self) -> str:
        wrong = ["N", "N <= n + 1", "N < n", "N == n == C", "=", "N =", "C = N + n", "n = n", "N = N - 1", "N <= n#c"]
        return self.one(*wrong, "x" * 3000)

    def values(self) -> str:
        wrong = ["p", "p=", "=1", "p=-1", "p=0", "p=1/0", "p=x", "p=1,p=2", "q=1", "p=nan", "p=1e999", "p=²"]
        return self.one(*wrong, "p=" + "9" * 5000, *(f"p={x}" for x in CODE))

    def rule(self) -> str:
        """Names of invariants that are none."""
        return self.one("", ",", "sde,", "sde timescale", "lr", "sde;mup", "sde," * 5000 + "x")

    def change(self) -> str:
        wrong = ["", "1", "1:2:3", "0:1", "1:0", "-1:1", "nan:1", "1:inf", "²:1", "1e999:1", ":", "1:", "a:b"]
        return self.one(*wrong, "9" * 400 + ":1", "1e-29:1e29")

    # files -------------------------------------------------------------------------------------------------------

    def file(self, content: bytes | str, ending: str = ".toml") -> str:
        self.made += 1
        path = self.folder / f"{self.made}{ending}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
        return str(path)

    def circle(self) -> str:
        """A link to itself, or a place behind one."""
        link = self.folder / "circle.toml"
        if not link.is_symlink():
            link.symlink_to(link)
        return str(self.draw.choice([link, link / "x.json"]))

    def read(self) -> str:
        """A path that no file with a network or a campaign is at."""
        deep, many = "x = " + "[" * 50_000 + "]" * 50_000, "\n".join(f"k{i} = {i}" for i in range(3000))
        contents = ["", "x", "\x00" * 100, b"\xff\xfe\x00", deep, many, "[[run]]", "run = 1", "name = 3", "[" * 5000]
        contents += ["x = " + "9" * 6000, "equations = 1", 'name = "a"\naxes = {a = "N"}\nequations = "h[a] = "']
        contents += [b"\xef\xbb\xbf" + b"x", "a" * 2_000_000, 'axes = {a="N"}\nequations = """' + "f(" * 5000 + '"""']
        contents += [text.replace("mine", f"{'x' * 60_000}", 1) for text in GOOD.values() if "mine" in text]
        there = self.file(self.draw.choice(contents))
        missing = [str(self.folder / "none.toml"), str(self.folder), "", "n" * 300, "n" * 5000, "/dev/zero", "a/b\n/c"]
        return self.draw.choice([there, there, there, self.circle(), self.pipe(), *missing])

    def pipe(self) -> str:
        """A named pipe that nobody writes to: a program that opens it waits for ever."""
        path = self.folder / "pipe.toml"
        if not path.is_fifo():
            os.mkfifo(path)
        return str(path)

    def written(self) -> str:
        """A path that no file can be written to."""
        wrong = [str(self.folder), "", " ", str(self.folder / "none" / "x.json"), str(self.folder / f"{'n' * 300}.md")]
        return self.draw.choice([*wrong, "/proc/x.json", __file__ + "/x.md", "n" * 5000, self.circle()])

    def place(self) -> str:
        """A folder that cannot be made."""
        return self.draw.choice(["", "/proc/none", f"{__file__}/x", "n" * 5000, "n" * 300, " ", self.circle()])

    def unpaged(self) -> str:
        """A folder that no page may be put into: what is no folder, cannot be made, or holds something else."""
        (self.folder / "full").mkdir(exist_ok=True)
        (self.folder / "full" / "mine.txt").touch()
        return self.draw.choice([self.place(), self.file("x"), str(self.folder / "full")])

    def inside(self, text: str) -> str:
        """A folder with this plan."""
        self.made += 1
        folder = self.folder / f"plan{self.made}"
        folder.mkdir()
        (folder / "plan.json").write_text(text, encoding="utf-8")
        return str(folder)

    def stored(self) -> str:
        """A folder with a plan that is none."""
        plan = json.loads(json.dumps(PLAN))
        run = plan["runs"][0]
        target, key = self.draw.choice(
            [(run, k) for k in RUN]
            + [(run["configuration"], k) for k in ("ray", "optimizer", "parameterization", "readout_init", "regime")]
            + [(plan, "runs"), (plan, "claims"), (plan, "format")]
        )
        odd: list[Any] = [True, 1.5, {"a": 1}, [1], [[]], "x" * 3000, -1, 10**12, 1e300, [None], [-1, -2, -3]]
        target[key] = self.draw.choice([x for x in odd if not (key == "regime" and x is None)])
        texts = [json.dumps(plan)] * 6
        texts += ["", "[", "1", "null", "[]", "{}", '{"runs": []}', "[" * 100_000, '{"runs": [1]}', "9" * 5000]
        texts += [json.dumps({**PLAN, **x}) for x in ({"runs": [RUN, RUN]}, {"format": 99}, {"format": "1"})]
        there = self.inside(self.draw.choice(texts))
        return self.draw.choice([*[there] * 6, str(self.folder / "none"), __file__, "", "n" * 5000, self.circle()])

    def campaign(self) -> str:
        """A campaign with one key that cannot be, or that cannot be read."""
        key = self.draw.choice(list(KEYS))
        value, lines = self.draw.choice(KEYS[key].split()), CAMPAIGN.splitlines()
        lines = [x for x in lines if not x.startswith(f"{key} ")]
        told = [f"{key} = {value}", *lines] if key == "title" else [*lines, f"{key} = {value}"]
        return self.draw.choice([self.file("\n".join(told)), self.read()])

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
                    content[at:at] = self.draw.choice([*HOSTILE, *DIGITS, *CODE, "[", "(", '"""', "="]).encode(
                        errors="surrogateescape"
                    )
                case _:
                    del content[at : at + self.draw.randint(1, 20)]
            if not content:
                break
        return content.decode("latin-1") if self.draw.random() < 0.2 else content.decode("utf-8", "replace")
