"""A browser that does what it is told through a pipe: one start for all that a page is asked."""

import itertools
import json
import os
import select
import subprocess
import time

PATIENCE = 60.0
"""Seconds until an answer must be there."""
KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """Headless Chromium with one open page; a call is a command of its DevTools protocol."""

    def __init__(self, profile):
        theirs, self._out = os.pipe()
        back, answers = os.pipe()
        words = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{answers}', "bash", *words],
            pass_fds=(theirs, answers),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        os.close(theirs)
        os.close(answers)
        self._back, self._read, self._numbers = os.fdopen(back, "rb"), b"", itertools.count(1)
        self.events = []
        self._page = {}
        try:
            made = self(
                "Target.attachToTarget",
                targetId=self("Target.createTarget", url="about:blank")["targetId"],
                flatten=True,
            )
        except BaseException:
            self.__exit__()
            raise
        self._page = {"sessionId": made["sessionId"]}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        self._back.close()
        os.close(self._out)

    def __call__(self, method, **given):
        number = next(self._numbers)
        os.write(
            self._out,
            json.dumps({"id": number, "method": method, "params": given, **self._page}).encode()
            + b"\0",
        )
        until = time.monotonic() + PATIENCE
        while (answer := self._message(until)).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, address):
        for room in ("Page", "Runtime", "Log"):
            self(f"{room}.enable")
        self("Page.navigate", url=address)
        until = time.monotonic() + PATIENCE
        while not self.heard("Page.loadEventFired"):
            self.events.append(self._message(until))

    def heard(self, *names):
        """What the page said of itself, by the names of events."""
        return [event for event in self.events if event.get("method") in names]

    def value(self, code):
        found = self("Runtime.evaluate", expression=code, returnByValue=True)["result"]
        return found.get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            code = KEYS[key]
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def _message(self, until):
        while b"\0" not in self._read:
            assert select.select([self._back], [], [], max(0.0, until - time.monotonic()))[0], (
                "Expected an answer, got none"
            )
            more = os.read(self._back.fileno(), 1 << 16)
            assert more, "Expected an answer of the browser, got its end"
            self._read += more
        one, _, self._read = self._read.partition(b"\0")
        return json.loads(one)
