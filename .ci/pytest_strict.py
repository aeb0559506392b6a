"""pytest, but a skipped test that is not marked ``gpu`` fails the run.

A few failures are tried once more, said aloud: most tests here start real processes, and a machine
that is busy with something else may starve one of them.
"""

# ruff: noqa: D102

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


class NoSilentSkips:
    """Collects the skipped tests that should have run, also those of parallel workers."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail") or "gpu" in report.keywords
        if report.skipped and not expected:
            self.skipped.append(f"{report.nodeid}: {_reason(report)}")
        self.failed += report.failed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(f"{report.nodeid}: {_reason(report)}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped, but not for want of a GPU")
            for line in self.skipped:
                terminalreporter.write_line(line)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


_FEW = 3


def main() -> int:
    """Run the tests; try a few failed ones again in a process of their own."""
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` does
    watched = NoSilentSkips()
    code = pytest.main(sys.argv[1:], plugins=[watched])
    if code != pytest.ExitCode.TESTS_FAILED or watched.skipped or "--lf" in sys.argv:
        return int(code)
    if not 0 < watched.failed <= _FEW:
        return int(code)
    print(f"\n{watched.failed} failed; trying them once more", flush=True)
    # one at a time now, in case they were in each other's way
    again = [sys.executable, __file__, *sys.argv[1:], "--lf", "-n0"]
    return subprocess.run(again, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
