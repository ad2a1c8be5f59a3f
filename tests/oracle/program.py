# SPDX-License-Identifier: MIT
"""Runs our program and counts what passed."""

import json
import pathlib
import subprocess
import time

from safetensors import safe_open


class Program:
    """The executables of a build folder."""

    def __init__(self, build):
        self.rmsfold = self._find(build, "rmsfold")
        self.reference_logits = self._find(build, "reference_logits")
        self.forced_transform = self._find(build, "forced_transform")

    @staticmethod
    def _find(build, name):
        for folder in ("", "tools", "examples", "tests", "bin"):
            path = pathlib.Path(build) / folder / name
            if path.is_file():
                return path
        raise SystemExit(f"{name}: not in the build folder; build the program and the examples first")

    def run(self, *arguments):
        """Exit status, seconds and what was printed."""
        start = time.monotonic()
        done = subprocess.run([self.rmsfold, *map(str, arguments)], capture_output=True, text=True)
        return done.returncode, time.monotonic() - start, (done.stdout + done.stderr).strip()

    def make(self, *arguments):
        """As run, but a failure is an error with the program's own message. Returns the seconds."""
        status, seconds, text = self.run(*arguments, "--quiet", "--no-fsync")
        if status != 0:
            raise AssertionError(f"rmsfold {arguments[0]} exited {status}: {text}")
        return seconds

    def verify(self, before, after, *options):
        """Exit status, seconds, text."""
        return self.run("verify", before, after, *options)

    def force(self, model, out, rotation):
        """Carries out what the program refuses."""
        done = subprocess.run([self.forced_transform, model, out, rotation], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"forced_transform exited {done.returncode}: {done.stderr.strip()}")

    def forward(self, model, ids, out, *options):
        """Logits of our reference forward."""
        pathlib.Path(out).unlink(missing_ok=True)
        request = pathlib.Path(out).with_suffix(".json")
        request.write_text(json.dumps(ids.tolist()))
        done = subprocess.run([self.reference_logits, model, request, out, *options], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"reference_logits exited {done.returncode}: {done.stderr.strip()}")
        with safe_open(out, "pt") as file:
            return file.get_tensor("logits")


class Results:
    """One line per case, a total at the end."""

    def __init__(self, quiet=False):
        self.passed = self.failed = 0
        self.quiet, self.lines = quiet, []

    def line(self, ok, name, text):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        self.lines.append((ok, name, text))
        if self.quiet:
            return
        print(f"{'ok    ' if ok else 'FAILED'} {name:<52} {text}", flush=True)

    def case(self, name, function, *arguments):
        """Runs a case that returns (ok, text); an exception is a failure with its message."""
        try:
            ok, text = function(*arguments)
        except Exception as error:  # the other cases are still worth running
            ok, text = False, f"{type(error).__name__}: {str(error)[:600]}"
        self.line(ok, name, text)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 0 if self.failed == 0 and self.passed > 0 else 1
