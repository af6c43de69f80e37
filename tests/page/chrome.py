"""A headless browser by the Chrome DevTools protocol: open a page, run scripts in it, see every request it makes."""

import contextlib
import json
import re
import shutil
import subprocess
import time

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
QUIET += ["--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*"]


class Chrome:
    """One tab. ``requests`` has the address of everything it and its workers asked for, ``faults`` what went wrong,
    ``workers`` the sessions of its workers."""

    def __init__(self, profile):
        self.requests, self.faults, self.workers, self._count, self._answers = [], [], [], 0, {}
        command = [BROWSER, *QUIET, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        line = next(x for x in self._process.stderr if "DevTools listening" in x)
        port = re.search(r":(\d+)/", line)[1]
        import urllib.request

        import websocket

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as tabs:
            tab = next(x for x in json.load(tabs) if x["type"] == "page")
        self._socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=60, enable_multithread=False)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)

    def close(self):
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.poll() is None:
            self._process.kill()

    def call(self, method, session=None, **parameters):
        """The result of one method of the protocol."""
        number = self._send(method, session, **parameters)
        while number not in self._answers:
            self._hear()
        found = self._answers.pop(number)
        assert "error" not in found, (method, found)
        return found["result"]

    def _send(self, method, session=None, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        return self._count

    def _hear(self):
        said = json.loads(self._socket.recv())
        if "id" in said:
            self._answers[said["id"]] = said
            return
        given = said["params"]
        match said["method"]:
            case "Target.attachedToTarget":
                self.workers.append(given["sessionId"])
                for method in ("Network.enable", "Runtime.enable", "Log.enable", "Runtime.runIfWaitingForDebugger"):
                    self._send(method, given["sessionId"])
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case "Runtime.exceptionThrown":
                self.faults.append(json.dumps(given["exceptionDetails"])[:600])
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.faults.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def open(self, address, width=1280, height=900):
        """Opens an address in a window of some width, and waits until its body is there."""
        self.size(width, height)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until("document.body && location.href !== 'about:blank'")

    def size(self, width, height=900):
        phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **phone)

    def run(self, script, worker=None):
        """The value of an expression, awaited; in the page, or in the session of a worker."""
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        done = self.call("Runtime.evaluate", worker, expression=script, **how)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script, seconds=60):
        """Waits until an expression is true; the seconds that it took."""
        began = time.monotonic()
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() - began < seconds, (script, self.run("document.body.innerText")[:1500], self.faults)
            time.sleep(0.05)
        return time.monotonic() - began

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
